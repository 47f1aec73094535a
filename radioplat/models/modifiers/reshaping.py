"""Differences between a pruned backbone and the one that its name builds, as plain data."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from torch import nn

Scalar = int | float | bool | str | None


@dataclass(frozen=True)
class Reshaping:
    """Changes that turn a newly built module into a pruned one; stored as JSON, so with lists instead of tuples.

    Attributes:
        kept: indices of the remaining children, by the name of each container from which some were removed.
        shapes: new shapes of parameters and buffers, by their names after the removal.
        attributes: other attributes that differ (``out_features``, ``num_heads``, ``stride``), by module name and
            attribute.
    """

    kept: dict[str, list[int]] = field(default_factory=dict)
    shapes: dict[str, list[int]] = field(default_factory=dict)
    attributes: dict[str, dict[str, Any]] = field(default_factory=dict)


def reshape(module: nn.Module, how: Reshaping) -> None:
    """Change ``module`` in place; each tensor keeps its first rows and columns.

    Raises:
        KeyError, AttributeError: ``how`` belongs to another module.
    """
    for name, indices in how.kept.items():
        keep_children(module.get_submodule(name), indices)
    for name, shape in how.shapes.items():
        owner, leaf = _owner(module, name)
        old = getattr(owner, leaf)
        new = old.detach()[tuple(slice(size) for size in shape)].clone()
        if isinstance(old, nn.Parameter):
            setattr(owner, leaf, nn.Parameter(new, requires_grad=old.requires_grad))
        else:
            setattr(owner, leaf, new)
    for name, values in how.attributes.items():
        owner = module.get_submodule(name)
        for attribute, value in values.items():
            old = getattr(owner, attribute)
            setattr(owner, attribute, tuple(value) if isinstance(old, tuple) else value)


def difference(base: nn.Module, changed: nn.Module, kept: dict[str, list[int]]) -> Reshaping:
    """Return the changes that turn ``base`` into the form of ``changed``; ``base`` is changed in place.

    Args:
        kept: indices of the children that remain in ``changed``, by the name of each container that lost some.
    """
    for name, indices in kept.items():
        keep_children(base.get_submodule(name), indices)
    before = {**dict(base.named_parameters()), **dict(base.named_buffers())}
    after = {**dict(changed.named_parameters()), **dict(changed.named_buffers())}
    shapes = {name: list(t.shape) for name, t in after.items() if t.shape != before[name].shape}
    attributes = {}
    for name, module in changed.named_modules():
        old = vars(base.get_submodule(name))
        values = {
            key: list(value) if isinstance(value, tuple) else value
            for key, value in vars(module).items()
            if key in old and key != "training" and _is_plain(value) and _is_plain(old[key]) and value != old[key]
        }
        if values:
            attributes[name] = values
    return Reshaping(kept, shapes, attributes)


def keep_children(container: nn.Module, indices: list[int]) -> None:
    """Keep only the children at ``indices`` of an ``nn.Sequential`` or ``nn.ModuleList``, and number them from 0."""
    children = list(container.children())
    for name in list(container._modules):
        del container._modules[name]
    for place, index in enumerate(indices):
        container.add_module(str(place), children[index])


def _owner(module: nn.Module, name: str) -> tuple[nn.Module, str]:
    parent, _, leaf = name.rpartition(".")
    return module.get_submodule(parent), leaf


def _is_plain(value: Any) -> bool:
    """Return whether JSON can represent ``value``: a scalar, or a tuple or list of scalars."""
    return isinstance(value, Scalar) or (isinstance(value, tuple | list) and all(isinstance(v, Scalar) for v in value))
