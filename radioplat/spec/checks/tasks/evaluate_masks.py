"""Checks of decoders on frozen feature maps: ``evaluate.segmentation`` and ``evaluate.change``."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from radioplat.errors import Problem
from radioplat.spec.checks.unused_fields import unused_fields
from radioplat.spec.schema.evaluate import DecoderKind, MaskedConfig

_LINEAR = ("weight_decays", "held_out", "max_iter")


def mask_problems(config: MaskedConfig, path: str) -> Iterator[Problem]:
    """Yield problems of the section at ``path``, without reading files."""
    if config == type(config)():
        return
    yield from _places(config, path)
    yield from _classes(config, path)
    yield from _decoder(config, path)


def fit_problems(decays: Sequence[float], path: str) -> Iterator[Problem]:
    """Yield a problem if a linear classifier has no weight decay to try."""
    if not decays:
        yield Problem("at least one number is needed", f"{path}.weight_decays")


def _places(config: MaskedConfig, path: str) -> Iterator[Problem]:
    """Check that folders or shards are given, not both, for training and held-out images."""
    hint = "A mask has the name of its image, as PNG."
    folders = [*(f"{role}_dir" for role in config.roles), "masks_dir"]
    given = [name for name in folders if getattr(config, name)]
    if config.shards_dir:
        for name in given:
            yield Problem(f"{path}.shards_dir is given too", f"{path}.{name}", "Give one of the two.")
    else:
        for name in folders:
            if not getattr(config, name):
                folder = "the folder of their masks" if name == "masks_dir" else f"the folder of {_named(name)}"
                yield Problem(f"{path.rpartition('.')[2]} needs {folder}", f"{path}.{name}", hint)
    held = [f"val_{name}" for name in folders if getattr(config, f"val_{name}")]
    if config.val_shards_dir:
        for name in held:
            yield Problem(f"{path}.val_shards_dir is given too", f"{path}.{name}", "Give one of the two.")
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
    """Check the fields of the chosen decoder, and that those of the other are not set."""
    light = config.light
    if config.decoder is DecoderKind.linear:
        yield from fit_problems(config.weight_decays, path)
        hint = f"Set {path}.decoder: light."
        yield from unused_fields(light, vars(light), f"{path}.light", "the decoder is linear", hint)
        return
    yield from unused_fields(config, _LINEAR, path, "only a linear decoder has it", f"Leave it out; see {path}.light.")
    if light.width % 8:
        yield Problem(f"must be a multiple of 8, not {light.width}", f"{path}.light.width")
