"""FeatSharp checkpoints: a safetensors file whose metadata is the configuration."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from safetensors.torch import save_file

from radioplat.common.atomic_files import written_aside
from radioplat.errors import SpecError, WeightsError
from radioplat.models.on_meta import on_meta
from radioplat.models.weights.read import fit, read_checkpoint, require_finite
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.spec.schema.upsampler import FEATSHARP
from radioplat.teachers.upsamplers.featsharp.featsharp import FeatSharp, FeatSharpConfig
from radioplat.teachers.upsamplers.registry import upsampler_field

KIND, VERSION = FEATSHARP, 1
_KEY = "radioplat_upsampler"
_AGAIN = "radioplat train_upsampler writes such a file."
# Parts of upsamplers of NVlabs/FeatSharp (commit 6ce9b18), by which its checkpoints name their tensors.
_THEIR_PARTS = {
    "block": "attention as wide as all its input maps together",
    "jafar": "JAFAR",
    "jbu": "a bilateral filter with reflected borders and weights of its own for range and distance",
    "resfu": "ReSFU",
    "rgb_proj": "colours as an input of the attention",
    "tile_pos": "a learned vector for each tile",
}


def save_upsampler(model: FeatSharp, path: Path, **facts: Any) -> None:
    """Write ``model`` to ``path`` atomically.

    Args:
        facts: further metadata (its teacher, the size it was trained at); JSON values.
    """
    metadata = {"kind": KIND, "version": VERSION, **facts, **dataclasses.asdict(model.config)}
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()}
    with written_aside(path) as aside:
        save_file(tensors, aside, {_KEY: json.dumps(metadata)})


def read_config(path: str | Path, where: str) -> FeatSharpConfig:
    """Read the configuration of the upsampler at ``path``; its tensors are not read.

    Args:
        where: the spec field that named the path.

    Raises:
        WeightsError: there is no such file, it is no upsampler, or has another version.
    """
    contents = read_checkpoint(path, where, shapes_only=True)
    _refuse_theirs(contents.tensors, path, where)
    stored = _stored_config(path, contents.metadata, where)
    for key, wanted in (("kind", KIND), ("version", VERSION)):
        if stored.get(key) != wanted:
            raise WeightsError(f"{path}: {key} is {stored.get(key)!r}, not {wanted!r}", where=where, hint=_AGAIN)
    values: dict[str, Any] = {}
    for field in dataclasses.fields(FeatSharpConfig):
        if field.name not in stored:
            raise WeightsError(f"{path}: {field.name} is missing from its metadata", where=where, hint=_AGAIN)
        values[field.name] = value = stored[field.name]
        numbers = value if field.name == "grid" and isinstance(value, list) and len(value) == 2 else [value]
        if (field.name == "grid" and numbers == [value]) or not all(_fits(field.name, n) for n in numbers):
            raise WeightsError(f"{path}: {field.name} cannot be {value!r}", where=where, hint=_AGAIN)
    return FeatSharpConfig(**values | {"grid": tuple(values["grid"])})


def load_upsampler(path: str | Path, where: str) -> FeatSharp:
    """Load the upsampler at ``path``, in evaluation mode, frozen, fp32.

    Raises:
        WeightsError: as :func:`read_config`, or its tensors are not finite or do not fit the configuration.
    """
    config = read_config(path, where)
    try:
        with on_meta():
            model = FeatSharp(config)
    except ValueError as error:
        raise WeightsError(f"{path}: {error}", where=where, hint=_AGAIN) from None
    tensors = read_checkpoint(path, where).tensors
    require_finite(tensors, path, where)
    try:
        tensors = fit(model, tensors, path, where)
    except WeightsError as error:  # without load_into's hint, which is about backbones
        raise WeightsError(error.problems[0].message, where=where, hint=_AGAIN) from None
    model.load_state_dict(tensors, assign=True)
    return model.requires_grad_(False).eval()


def read_for_teacher(teacher: ResolvedTeacher, spatial_dim: int) -> FeatSharpConfig:
    """Read the configuration of ``teacher``'s upsampler and check that it fits; its tensors are not read.

    Args:
        teacher: one with an ``upsampler_checkpoint``.
        spatial_dim: width of the teacher's own map.

    Raises:
        SpecError: it makes maps finer by another factor than that of the spec.
        WeightsError: it cannot be read, or belongs to a teacher of another width.
    """
    path, where = teacher.upsampler_checkpoint, upsampler_field(teacher)
    assert path is not None
    config = read_config(path, where)
    if config.factor != teacher.upsample_factor:
        raise SpecError(
            f"{path} makes a map {config.factor} times finer, not {teacher.upsample_factor}",
            where=f"{teacher.where}.upsample_factor",
            hint=f"Set it to {config.factor}.",
        )
    if config.dim != spatial_dim:
        raise WeightsError(
            f"{path} was trained for a map of width {config.dim}, and this teacher's has {spatial_dim}",
            where=where,
            hint="An upsampler belongs to one teacher.",
        )
    return config


def parameter_count(config: FeatSharpConfig) -> int:
    """Count the parameters of the upsampler that ``config`` describes, without allocating them."""
    with on_meta():
        return sum(p.numel() for p in FeatSharp(config).parameters())


def _refuse_theirs(tensors: Iterable[str], path: str | Path, where: str) -> None:
    """Refuse a checkpoint of NVlabs' FeatSharp, whose tensors have no place in ours.

    Raises:
        WeightsError: with what its upsampler has that ours lacks.
    """
    theirs = [name.split(".") for name in tensors if name.startswith("upsampler.")]
    if not theirs:
        return
    has = [text for part, text in _THEIR_PARTS.items() if any(part in name for name in theirs)]
    raise WeightsError(
        f"{path} is a checkpoint of NVlabs' FeatSharp, which has {', '.join(has) or 'another upsampler'}; "
        "radioplat's has other layers, which would compute other maps from these weights",
        where=where,
        hint=_AGAIN,
    )


def _stored_config(path: str | Path, metadata: dict[str, str], where: str) -> dict[str, Any]:
    try:
        stored = json.loads(metadata[_KEY])
    except (KeyError, ValueError):
        stored = None
    if not isinstance(stored, dict):
        raise WeightsError(f"{path} is no upsampler: its metadata has no {_KEY}", where=where, hint=_AGAIN)
    return stored


def _fits(name: str, value: Any) -> bool:
    if name == "debias":
        return isinstance(value, bool)
    return isinstance(value, int) and not isinstance(value, bool) and value >= (0 if name == "jbu_radius" else 1)
