"""Read YAML and overrides into a :class:`Spec`.

All unknown, missing and mistyped fields are reported together, then all values out of range.
Interpolations (``${...}``) are resolved; ``???`` marks a required value.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import typing
from collections.abc import Iterable, Mapping
from dataclasses import MISSING
from enum import Enum
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from radioplat.errors import Problem, SpecError
from radioplat.spec.loading.fields import accept_case, faults, first_line, is_secret, strip_optional
from radioplat.spec.loading.merge import merged
from radioplat.spec.loading.overrides import apply_override
from radioplat.spec.loading.plain_tree import get
from radioplat.spec.loading.tao_detectors import accept_detectors
from radioplat.spec.loading.tao_fields import accept_tao_fields
from radioplat.spec.loading.tao_objective import accept_tao_objective
from radioplat.spec.loading.weights_fields import use_local_weights
from radioplat.spec.ranges import range_problems
from radioplat.spec.resolved.image_extension import extension_problems
from radioplat.spec.resolved.image_sizes import scale_problems
from radioplat.spec.schema.root import Spec
from radioplat.spec.weights.address import timm_name


def load_spec(
    source: str | Path | Mapping[str, Any] | Spec | None = None, overrides: typing.Sequence[str] = ()
) -> Spec:
    """Read a spec and apply ``key=value`` overrides in order.

    Args:
        source: a YAML file, a mapping of sections, a :class:`Spec` (which is copied), or None for the defaults.
        overrides: hydra-style ``a.b[0].c=value`` or ``a.b.0.c=value``; values are YAML.

    Returns:
        A tree of dataclasses whose values are valid one by one; contradictions between fields are found by
        ``radioplat.spec.checks``. Addresses of fetched weights (``hf://org/name``) are paths.

    Raises:
        SpecError: with one problem for each unknown, missing or mistyped field, or for each value out of its range;
            or ``source`` or ``overrides`` is none of these.

    Example:
        >>> spec = radioplat.load_spec("spec.yaml", ["train.num_epochs=2", "results_dir=results/short"])
        >>> spec.train.num_epochs
        2
    """
    _check_overrides(overrides)
    name, tree = _read(source)
    for override in overrides:
        apply_override(tree, override, Spec)
    unavailable = accept_detectors(tree)
    _accept_single_teacher(tree)
    unavailable += accept_tao_fields(tree)
    accept_case(tree, Spec)
    accept_tao_objective(tree)
    _accept_named_models(tree)
    _accept_two_of_four(tree)
    _accept_sizes_of_json(tree)
    tree = _without_defaults(tree, _default_tree(), Spec)
    if problems := [*unavailable, *faults(tree, Spec, "", Spec)]:
        raise SpecError(*_located(problems, name))
    try:
        spec = merged(tree)
    except OmegaConfBaseException as error:
        raise _unresolved(error, name) from None
    _accept_timm_names(spec)
    use_local_weights(spec)
    problems = [*scale_problems(spec), *range_problems(spec), *extension_problems(spec)]
    if problems:
        raise SpecError(*_located(problems, name))
    return spec


def changed_fields(spec: Spec) -> dict[str, Any]:
    """Return the fields of ``spec`` that differ from their defaults, as a plain tree."""
    return _without_defaults(_tree(spec, Spec, names=True), _default_tree(names=True), Spec)


@functools.cache
def _default_tree(names: bool = False) -> dict[str, Any]:
    return _tree(Spec(), Spec, names)


def _without_defaults(tree: dict[Any, Any], defaults: dict[Any, Any], kind: Any = None) -> dict[Any, Any]:
    """Return ``tree`` without the values that are the defaults, type included; OmegaConf merges each slowly.

    ``auto`` is the default of a number or a truth value that may be unset.

    Args:
        kind: the dataclass of ``tree``, if it has one.
    """
    kinds = _hints(kind) if isinstance(kind, type) and dataclasses.is_dataclass(kind) else {}
    changes = {}
    for key, value in tree.items():
        default, inner = defaults.get(key, MISSING), strip_optional(kinds.get(key))
        if value == "auto" and default is None and inner in (bool, int, float):
            continue  # as unset: radioplat decides
        if isinstance(value, dict) and isinstance(default, dict):
            if change := _without_defaults(value, default, inner):
                changes[key] = change
        elif type(value) is not type(default) or isinstance(value, list) and value or value != default:
            item = (typing.get_args(inner) or (None,))[0]
            if isinstance(value, list) and isinstance(item, type) and dataclasses.is_dataclass(item):
                same = _default_item(item)
                value = [_without_defaults(v, same, item) if isinstance(v, dict) else v for v in value]
            changes[key] = value
    return changes


@functools.cache
def _default_item(kind: type) -> dict[str, Any]:
    return _tree(kind(), kind)


def to_yaml(spec: Spec) -> str:
    """Return the whole spec as YAML with all defaults; :func:`load_spec` reads it back unchanged."""
    return dump(spec_tree(spec))


def spec_tree(spec: Spec) -> dict[str, Any]:
    """Return the whole spec as plain values."""
    return typing.cast("dict[str, Any]", _tree(spec, Spec, names=True))


def dump(value: Any, **options: Any) -> str:  # noqa: ANN401
    """Return plain values as YAML that a spec reads back unchanged; ``options`` are PyYAML's."""
    return yaml.dump(value, allow_unicode=True, sort_keys=False, Dumper=_Dumper, **options)


class _Dumper(yaml.Dumper):
    """Writes YAML that OmegaConf reads back: text that looks like a number or a truth value is quoted."""

    def ignore_aliases(self, data: object) -> bool:
        """Return True: equal values are written out wherever they stand."""
        return True


def _text(dumper: yaml.Dumper, text: str) -> yaml.ScalarNode:
    try:
        float(text)
    except ValueError:
        quoted = text.lower() in _TRUTH_VALUES
    else:
        quoted = True
    return dumper.represent_scalar("tag:yaml.org,2002:str", text, style="'" if quoted else None)


_TRUTH_VALUES = ("y", "yes", "n", "no", "true", "false", "on", "off")
_Dumper.add_representer(str, _text)


def _tree(value: Any, kind: Any, names: bool = False) -> Any:
    """Return dataclasses as dicts, tuples as lists, whole numbers of float fields as floats.

    Args:
        kind: the annotation of ``value``.
        names: write the names of enum members in place of the members.
    """
    kind = strip_optional(kind)
    if dataclasses.is_dataclass(value):
        kinds = _hints(value.__class__)
        return {f.name: _tree(getattr(value, f.name), kinds[f.name], names) for f in dataclasses.fields(value)}
    inner = typing.get_args(kind)[-1:] or (None,)
    if isinstance(value, dict):
        return {key: _tree(each, inner[0], names) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [_tree(each, inner[0], names) for each in value]
    if isinstance(value, Enum):
        return value.name if names else value
    return float(value) if kind is float and type(value) is int else value


@functools.cache
def _hints(kind: type) -> dict[str, Any]:
    return typing.get_type_hints(kind)


def _check_overrides(overrides: Any) -> None:  # noqa: ANN401
    """Refuse what is no sequence of ``key=value``: the letters of a text would be read as overrides."""
    hint = 'Give a list of texts: ["train.num_epochs=2"].'
    if isinstance(overrides, (str, bytes, Mapping)) or not isinstance(overrides, Iterable):
        raise SpecError(f"this is a {type(overrides).__name__}, not a list", where="overrides", hint=hint)
    for i, override in enumerate(overrides):
        if not isinstance(override, str):
            raise SpecError(f"this is a {type(override).__name__}, not a text", where=f"overrides[{i}]", hint=hint)


def _read(source: Any) -> tuple[str, dict[str, Any]]:  # noqa: ANN401
    if source is None:
        return "", {}
    if isinstance(source, Spec):
        return "", _tree(source, Spec)
    if isinstance(source, Mapping):
        tree = _dicts(source)
        return "", tree if _is_plain(tree) else _plain(tree, "")
    if not isinstance(source, (str, os.PathLike)):
        hint = "Give the path of a YAML file, a mapping of sections, or what radioplat.load_spec returned."
        raise SpecError(f"this is a {type(source).__name__}, not a spec", where="spec", hint=hint)
    path = Path(source)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError(
            f"cannot read the spec: {error.strerror}", where=str(path), hint="Name an existing YAML file."
        ) from None
    except UnicodeDecodeError:
        raise SpecError("this is not a text file", where=str(path), hint="Name a YAML file.") from None
    return str(path), _plain(text, str(path))


def _plain(source: str | dict[str, Any] | DictConfig, name: str) -> dict[str, Any]:
    try:
        tree = OmegaConf.create(source)
    except yaml.YAMLError as error:
        raise SpecError(f"not valid YAML{_place(error)}", where=name) from None
    except ValueError:  # a number with thousands of digits
        raise SpecError("not valid YAML: one of its numbers cannot be read", where=name) from None
    except OmegaConfBaseException as error:
        raise _unresolved(error, name) from None
    if not isinstance(tree, DictConfig):
        raise SpecError("the top level must be a mapping of sections", where=name)
    return typing.cast("dict[str, Any]", OmegaConf.to_container(tree))


def _dicts(tree: Any) -> Any:  # noqa: ANN401
    """Return ``tree`` with each mapping as a dict; OmegaConf reads only these and its own."""
    if isinstance(tree, Mapping) and not isinstance(tree, DictConfig):
        return {key: _dicts(value) for key, value in tree.items()}
    return [_dicts(value) for value in tree] if isinstance(tree, (list, tuple)) else tree


def _is_plain(tree: Any) -> bool:  # noqa: ANN401
    """Return whether OmegaConf would give ``tree`` back as it is: text keys, YAML's values, no interpolations."""
    if type(tree) is dict:
        return all(type(key) is str and _is_plain(value) for key, value in tree.items())
    if type(tree) is list:
        return all(map(_is_plain, tree))
    return "${" not in tree if type(tree) is str else tree is None or type(tree) in (bool, int, float)


def _unresolved(error: OmegaConfBaseException, name: str) -> SpecError:
    key = getattr(error, "full_key", "") or ""
    return SpecError("this interpolation cannot be read" if is_secret(key) else first_line(error), where=_at(name, key))


def _place(error: yaml.YAMLError) -> str:
    """Return line and column of a YAML error, without the surrounding text, which may contain a secret."""
    mark, problem = getattr(error, "problem_mark", None), getattr(error, "problem", None) or ""
    reason = f": {problem}" if problem and not any(word in problem for word in ("alias", "tag")) else ""
    return f" at line {mark.line + 1}, column {mark.column + 1}{reason}" if mark else ""


def _accept_single_teacher(plain: dict[str, Any]) -> None:
    distill = plain.get("distill")
    if isinstance(distill, dict) and isinstance(distill.get("teacher"), dict):
        distill["teacher"] = [distill["teacher"]]


def _accept_timm_names(spec: Spec) -> None:
    """Take ``timm/NAME`` and ``timm:NAME`` for timm's ``NAME`` as the type of a backbone, in place."""
    for backbone in (spec.model.backbone, *(teacher.model.backbone for teacher in spec.distill.teacher)):
        backbone.type = backbone.type and timm_name(backbone.type)


def _accept_named_models(plain: dict[str, Any]) -> None:
    """Convert ``{name: path}`` or ``{name: {path: ..., precision: ...}}`` in ``evaluate.models`` to a list."""
    evaluate = plain.get("evaluate")
    if isinstance(evaluate, dict) and isinstance(models := evaluate.get("models"), dict):
        evaluate["models"] = [
            {"name": str(name), **(value if isinstance(value, dict) else {"path": value})}
            for name, value in models.items()
        ]


def _accept_two_of_four(plain: dict[str, Any]) -> None:
    """Undo that YAML 1.1 reads an unquoted ``2:4`` as minutes and seconds."""
    sparsity = plain.get("prune") and isinstance(plain["prune"], dict) and plain["prune"].get("sparsity")
    if isinstance(sparsity, dict) and sparsity.get("type") == 2 * 60 + 4:
        sparsity["type"] = "2:4"


def _accept_sizes_of_json(plain: dict[str, Any]) -> None:
    """Take sizes that are text for numbers: keys of JSON are always text."""
    holders = [(get(plain, "dataset.augmentation"), "multi_scales")]
    for path, name in (("distill.partitions", "sizes"), ("distill.teacher", "stochastic_resolutions")):
        entries = get(plain, path)
        holders += [(entry, name) for entry in (entries if isinstance(entries, list) else ())]
    for holder, name in holders:
        if isinstance(holder, dict):
            holder |= {name: _numbered(holder[name])} if name in holder else {}


def _numbered(sizes: Any) -> Any:  # noqa: ANN401
    if isinstance(sizes, list):
        return [_numbered(entry) if isinstance(entry, dict) else entry for entry in sizes]
    if isinstance(sizes, dict):
        return {int(key) if re.fullmatch("[0-9]{1,6}", str(key)) else key: value for key, value in sizes.items()}
    return sizes


def _located(problems: list[Problem], name: str) -> list[Problem]:
    """Return ``problems`` with the name of the spec file before each field path."""
    return [dataclasses.replace(p, where=_at(name, p.where)) for p in problems]


def _at(name: str, key: str) -> str:
    return f"{name}: {key}" if name and key else name or key
