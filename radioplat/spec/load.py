"""YAML and overrides to a :class:`Spec`: every unknown, missing or mistyped field is reported at once.

The user's file is only ever read. Interpolations (``${...}``) are resolved; ``???`` marks a value that must be given.
"""

from __future__ import annotations

import dataclasses
import difflib
import types
import typing
from pathlib import Path
from typing import Any

import yaml
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from radioplat.errors import Problem, SpecError
from radioplat.spec.root import Spec

# Fields by which the `distill.teacher` blocks of TAO's other tasks are recognised.
_OTHER_TASKS = {
    "num_queries": "DINO or RT-DETR (object detection)",
    "dec_layers": "DINO (object detection)",
    "enc_layers": "DINO (object detection)",
    "num_feature_levels": "DINO (object detection)",
    "train_backbone": "DINO (object detection)",
    "hidden_dim": "RT-DETR (object detection)",
    "num_decoder_layers": "RT-DETR (object detection)",
    "decoder": "SegFormer (segmentation)",
}


def load_spec(source: str | Path | dict | Spec | None = None, overrides: typing.Sequence[str] = ()) -> Spec:
    """Read a spec and apply ``key=value`` overrides in order.

    Args:
        source: a YAML file, a mapping, an existing :class:`Spec`, or None for the defaults.
        overrides: hydra-style ``a.b[0].c=value`` or ``a.b.0.c=value``; values are YAML.

    Returns:
        A validated tree of dataclasses; semantic checks are `radioplat.spec.check`'s.

    Raises:
        SpecError: with one problem for each unknown, missing or mistyped field.
    """
    name, tree = _read(source)
    config = OmegaConf.create(tree)
    for override in overrides:
        _apply(config, override)
    try:
        plain = OmegaConf.to_container(config, resolve=True)
    except OmegaConfBaseException as error:
        raise SpecError(_first_line(error), where=getattr(error, "full_key", None) or name) from None
    _accept_single_teacher(plain)
    problems = [dataclasses.replace(p, where=_at(name, p.where)) for p in _unknown(plain, Spec, "")]
    if problems:
        raise SpecError(*problems)
    try:
        merged = OmegaConf.merge(OmegaConf.structured(Spec), plain)
    except OmegaConfBaseException as error:
        raise SpecError(_first_line(error), where=_at(name, getattr(error, "full_key", "") or "")) from None
    missing = sorted(OmegaConf.missing_keys(merged))
    if missing:
        raise SpecError(
            *[Problem("a value is required here", _at(name, key), f"Give it in the file or as {key}=...") for key in missing]
        )
    return typing.cast(Spec, OmegaConf.to_object(merged))


def to_yaml(spec: Spec) -> str:
    """The whole spec as YAML, every default written out; :func:`load_spec` reads it back equal."""
    return OmegaConf.to_yaml(OmegaConf.structured(spec))


def _read(source: str | Path | dict | Spec | None) -> tuple[str, dict]:
    if source is None:
        return "", {}
    if isinstance(source, Spec):
        return "", typing.cast(dict, OmegaConf.to_container(OmegaConf.structured(source)))
    if isinstance(source, (dict, DictConfig)):
        return "", typing.cast(dict, OmegaConf.to_container(OmegaConf.create(source)))
    path = Path(source)
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise SpecError(f"cannot read the spec: {error.strerror}", where=str(path), hint="Give an existing file to -e.") from None
    except UnicodeDecodeError:
        raise SpecError("this is not a text file", where=str(path), hint="Give a YAML file to -e.") from None
    try:
        tree = OmegaConf.create(text)
    except (yaml.YAMLError, OmegaConfBaseException) as error:
        raise SpecError(f"not valid YAML: {' '.join(str(error).split())}", where=str(path)) from None
    if not isinstance(tree, DictConfig):
        raise SpecError("the top level must be a mapping of sections", where=str(path))
    return str(path), typing.cast(dict, OmegaConf.to_container(tree))


def _apply(config: DictConfig, override: str) -> None:
    key, equals, text = override.partition("=")
    key = key.lstrip("+").strip()
    if not equals or not key:
        raise SpecError("an override must read key=value", where=override, hint="For example train.num_epochs=2.")
    # Overrides inside a single mapping of `distill.teacher` must land where the list will be.
    if key.startswith("distill.teacher") and isinstance(OmegaConf.select(config, "distill.teacher"), DictConfig):
        config.distill.teacher = [config.distill.teacher]
    try:
        value = yaml.safe_load(text) if text.strip() else (None if text == "" else text)
        if isinstance(value, str) and value.count("e") == 1:
            value = _scientific(value)
        OmegaConf.update(config, key, value, merge=True, force_add=True)
    except yaml.YAMLError:
        raise SpecError(f"the value {text!r} is not valid YAML", where=key) from None
    except (OmegaConfBaseException, IndexError, TypeError, ValueError) as error:
        raise SpecError(f"cannot set this field: {_first_line(error)}", where=key) from None


def _scientific(text: str) -> str | float:
    """YAML 1.1 reads 1e-3 as text; the field's readers mean a number."""
    try:
        return float(text)
    except ValueError:
        return text


def _accept_single_teacher(plain: dict) -> None:
    distill = plain.get("distill")
    if isinstance(distill, dict) and isinstance(distill.get("teacher"), dict):
        distill["teacher"] = [distill["teacher"]]


def _unknown(value: Any, kind: Any, path: str) -> typing.Iterator[Problem]:
    """Walk ``value`` beside the dataclass ``kind`` and yield a problem for each key the dataclass lacks."""
    kind = _strip_optional(kind)
    origin, args = typing.get_origin(kind), typing.get_args(kind)
    if dataclasses.is_dataclass(kind):
        if not isinstance(value, dict):
            if value is not None:
                yield Problem(f"a section is expected here, not {value!r}", path)
            return
        hints = typing.get_type_hints(kind)
        for key, inner in value.items():
            at = f"{path}.{key}" if path else str(key)
            if key in hints:
                yield from _unknown(inner, hints[key], at)
            elif path.startswith("distill.teacher") and key in _OTHER_TASKS:
                yield Problem(
                    f"this block belongs to another task: {_OTHER_TASKS[key]}", at,
                    "A `radio` teacher has model.backbone.type and pretrained_teacher_model_path.",
                )
            else:
                yield Problem("unknown field", at, _nearest(str(key), hints, path))
    elif origin is list and isinstance(value, list):
        for i, inner in enumerate(value):
            yield from _unknown(inner, args[0], f"{path}[{i}]")
    elif origin is dict and isinstance(value, dict):
        for key, inner in value.items():
            yield from _unknown(inner, args[1], f"{path}.{key}")


def _strip_optional(kind: Any) -> Any:
    if typing.get_origin(kind) in (typing.Union, types.UnionType):
        inner = [a for a in typing.get_args(kind) if a is not type(None)]
        return inner[0] if len(inner) == 1 else kind
    return kind


def _nearest(key: str, hints: dict[str, Any], path: str) -> str:
    close = difflib.get_close_matches(key, hints, n=1, cutoff=0.5)
    if close:
        return f"Did you mean {path + '.' if path else ''}{close[0]}?"
    return "Valid here: " + ", ".join(sorted(hints)) + "."


def _at(name: str, key: str) -> str:
    return f"{name}: {key}" if name and key else name or key


def _first_line(error: BaseException) -> str:
    return str(error).splitlines()[0].rstrip(".")
