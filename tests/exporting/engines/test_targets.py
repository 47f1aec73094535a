"""GPUs that an engine is built for: those that a library does not know are refused with what to do instead."""

from __future__ import annotations

from pathlib import Path

import pytest

from radioplat.errors import EngineError
from radioplat.exporting.engines.targets import WHERE, choose_targets

ROOT = Path(__file__).parents[3]
KNOWN = ["SM80", "SM86", "SM89", "SM120"]


def refused(*requested: str) -> EngineError:
    with pytest.raises(EngineError) as caught:
        choose_targets(KNOWN, requested, ["fp32"], "TensorRT-RTX 1.7")
    assert caught.value.problems[0].where == WHERE
    return caught.value


@pytest.mark.parametrize("name", ["SM87", "sm87"])
def test_a_jetson_orin_is_sent_to_the_bundle(name):
    hint = refused("SM86", name).problems[0].hint
    assert f"Valid: {', '.join(KNOWN)}, or auto." in hint and "For a Jetson Orin export a bundle" in hint
    assert "docs/how_to/jetson.md" in hint and "bundle" in (ROOT / "docs/how_to/jetson.md").read_text()


def test_another_gpu_is_not():
    problem = refused("SM75").problems[0]
    assert "does not support a GPU 'SM75'" in problem.message and "bundle" not in problem.hint
    assert "at least one GPU" in refused().problems[0].message


def test_a_library_that_knows_it_builds_for_it():
    assert choose_targets([*KNOWN, "SM87"], ["SM87", "auto"], ["fp32"], "TensorRT") == ["SM87", "SM86", "SM89", "SM120"]
