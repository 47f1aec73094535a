"""The extension of a shard's images, ``tar_data_sources[i].image_extension``."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.schema.dataset import SplitConfig, TarSource
from radioplat.spec.schema.root import Spec

_SIDECARS = ("json", "cls", "txt")


def image_extension(source: TarSource) -> str | None:
    """Return ``image_extension`` as extensions of members are compared: in lower case, without a dot before it."""
    return source.image_extension and source.image_extension.lower().removeprefix(".")


def extension_problems(spec: Spec) -> Iterator[Problem]:
    """Yield a problem for each ``image_extension`` that is empty, padded with spaces, a path, or of sidecars."""
    for name, split in vars(spec.dataset).items():
        if isinstance(split, SplitConfig):
            for i, source in enumerate(split.tar_data_sources):
                if fault := _fault(image_extension(source)):
                    hint = "Give what follows the first dot of the images' names, for example rgb.jpg; or leave it out."
                    yield Problem(fault, f"dataset.{name}.tar_data_sources[{i}].image_extension", hint)


def _fault(extension: str | None) -> str:
    if extension is None:
        return ""
    if not extension.strip():
        return "the extension is empty"
    if extension != extension.strip() or "/" in extension:
        return f"{extension!r} is no extension"
    return f"{extension!r} is of sidecars, not of images" if extension.rpartition(".")[2] in _SIDECARS else ""
