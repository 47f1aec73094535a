"""Merge a checked tree of fields into the defaults, by OmegaConf's schemas.

The schema of all sections takes 0.4 s of a core to make, which each process of a run would pay. So only those of the
sections that differ are made, unless the tree has interpolations.
"""

from __future__ import annotations

import copy
import dataclasses
import functools
import pickle
import typing
from typing import Any

from omegaconf import DictConfig, OmegaConf

from radioplat.spec.schema.root import Spec


def merged(tree: dict[str, Any]) -> Spec:
    """Return the spec of ``tree``, fields that differ from their defaults; ``${...}`` is resolved.

    Raises:
        OmegaConfBaseException: a value has the wrong type, or an interpolation names nothing.
    """
    if "${" in str(tree):
        whole = OmegaConf.unsafe_merge(pickle.loads(_schema()), tree)
        OmegaConf.resolve(whole)
        return typing.cast(Spec, OmegaConf.to_object(whole))
    spec = Spec()
    for name, value in tree.items():
        both = typing.cast(DictConfig, OmegaConf.unsafe_merge(section_defaults(name), {name: value}))
        section = both[name]
        setattr(spec, name, OmegaConf.to_object(section) if OmegaConf.is_config(section) else section)
    return spec


def section_defaults(section: str) -> DictConfig:
    """Return a new container of one section, with its defaults and types."""
    if dataclasses.is_dataclass(getattr(Spec(), section)):
        return typing.cast(DictConfig, pickle.loads(_of_section(section)))
    return copy.deepcopy(_of_value(section))


@functools.cache
def _schema() -> bytes:
    """Return the pickled schema of all sections."""
    return pickle.dumps(OmegaConf.structured(Spec))


@functools.cache
def _of_section(section: str) -> bytes:
    """Return the pickled schema of a dataclass; reading it takes a fifth of the time of copying it."""
    return pickle.dumps(OmegaConf.create({section: OmegaConf.structured(getattr(Spec(), section))}))


@functools.cache
def _of_value(section: str) -> DictConfig:
    """Return the schema of a field that is no dataclass."""
    (one,) = (each for each in dataclasses.fields(Spec) if each.name == section)
    value = dataclasses.field(default=one.default, default_factory=one.default_factory)
    kind = dataclasses.make_dataclass(Spec.__name__, [(section, typing.get_type_hints(Spec)[section], value)])
    return typing.cast(DictConfig, OmegaConf.structured(kind))
