"""Contradictions in decoders on frozen maps: ``evaluate.segmentation`` and ``evaluate.change``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields

from radioplat.errors import Problem
from radioplat.spec.schema.evaluate import DecoderKind, LightDecoderConfig, MaskedConfig

_LINEAR = ("weight_decays", "held_out", "max_iter")


def mask_problems(config: MaskedConfig, path: str) -> Iterator[Problem]:
    """Yield what is wrong with the section at ``path`` alone."""
    if config == type(config)():
        return
    yield from _places(config, path)
    yield from _classes(config, path)
    yield from _decoder(config, path)


def fit_problems(decays: Sequence[float], path: str) -> Iterator[Problem]:
    """Yield a problem where a linear classifier has no weight decay."""
    if not decays:
        yield Problem("at least one number is needed", f"{path}.weight_decays")


def _places(config: MaskedConfig, path: str) -> Iterator[Problem]:
    """Folders or shards, not both; of held-out images as of the others."""
    hint = "A mask has the name of its image, as PNG."
    folders = [*(f"{role}_dir" for role in config.roles), "masks_dir"]
    given = [name for name in folders if getattr(config, name)]
    if config.shards_dir:
        for name in given:
            yield Problem(f"{path}.shards_dir is given too", f"{path}.{name}", "Take one of the two.")
    else:
        for name in folders:
            if not getattr(config, name):
                folder = "the folder of their masks" if name == "masks_dir" else f"the folder of {_named(name)}"
                yield Problem(f"{path.rpartition('.')[2]} needs {folder}", f"{path}.{name}", hint)
    held = [f"val_{name}" for name in folders if getattr(config, f"val_{name}")]
    if config.val_shards_dir:
        for name in held:
            yield Problem(f"{path}.val_shards_dir is given too", f"{path}.{name}", "Take one of the two.")
    elif held:
        for name in folders:
            if not getattr(config, f"val_{name}"):
                yield Problem(f"{path}.{held[0]} is given and this is not", f"{path}.val_{name}")


def _named(folder: str) -> str:
    name = folder.removesuffix("_dir")
    return name if name == "images" else f"images {name}"


def _classes(config: MaskedConfig, path: str) -> Iterator[Problem]:
    values, ignore = config.class_values, config.ignore_index
    if config.num_classes < 2:
        yield Problem(f"the number of classes is needed, at least 2, not {config.num_classes}", f"{path}.num_classes")
        return
    if values and (len(values) != config.num_classes or len(set(values)) != len(values)):
        message = f"{config.num_classes} different numbers are needed, not {values}"
        yield Problem(message, f"{path}.class_values")
    if ignore is not None and ignore in values:
        hint = "Set it to null, or to another number."
        yield Problem(f"{ignore} is the number of a class too", f"{path}.ignore_index", hint)


def _decoder(config: MaskedConfig, path: str) -> Iterator[Problem]:
    """Fields of the decoder that is taken; those of the other would do nothing."""
    plain, light = type(config)(), config.light
    if config.decoder is DecoderKind.linear:
        yield from fit_problems(config.weight_decays, path)
        for field in fields(LightDecoderConfig):
            if getattr(light, field.name) != getattr(plain.light, field.name):
                yield Problem("the decoder is linear", f"{path}.light.{field.name}", f"Set {path}.decoder: light.")
        return
    for name in _LINEAR:
        if getattr(config, name) != getattr(plain, name):
            yield Problem("is of a linear decoder", f"{path}.{name}", f"Leave it out; see {path}.light.")
    if light.width % 8:
        yield Problem(f"must be a multiple of 8, not {light.width}", f"{path}.light.width")
