"""Needs of nodes, as hypothesis draws them."""

from __future__ import annotations

from hypothesis import strategies as st


@st.composite
def needs_of_nodes(draw) -> dict[str, tuple[str, ...]]:
    """The needs of up to eight nodes, without circles, in any order."""
    names = [f"n{i}" for i in range(draw(st.integers(1, 8)))]
    needs = {
        name: tuple(draw(st.lists(st.sampled_from(names[:i]), unique=True))) if i else ()
        for i, name in enumerate(names)
    }
    order = draw(st.permutations(names))
    return {name: needs[name] for name in order}
