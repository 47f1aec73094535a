"""List the data files of a split of the spec."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from radioplat.data.images.headers import IMAGE_EXTENSIONS
from radioplat.data.storage.files import FileState, absolute, list_files, not_a_file
from radioplat.errors import DataError
from radioplat.spec.resolved.image_extension import image_extension
from radioplat.spec.resolved.paths import no_such_folder, shards_hint
from radioplat.spec.schema.dataset import SplitConfig


@dataclass(frozen=True)
class ShardFile:
    """One file of a source.

    Attributes:
        name: path below the source's root, with ``/``.
        state: size in bytes and modification time.
    """

    name: str
    state: FileState


@dataclass(frozen=True)
class SourceFiles:
    """One source: ``tar_data_sources[i]``, or ``images_dir``, whose every image is a shard of one row.

    Attributes:
        field: the spec field of the folder.
        root: absolute path of the folder, or ``s3://...``, ``gs://...``.
        kind: of all files.
        scale_factor: unnormalised share in the mixture (1 for ``images_dir``).
        files: sorted by name.
        image_extension: of the images in tars, in lower case, without a dot before it; None if the spec names none.
    """

    field: str
    root: str
    kind: Literal["tar", "image"]
    scale_factor: float
    files: list[ShardFile]
    image_extension: str | None


def list_shards(split: SplitConfig, path: str) -> list[SourceFiles]:
    """List the files of every source of ``split``; the tar sources in their order, then ``images_dir``.

    Args:
        split: one split of the spec.
        path: its field path, for example ``dataset.train_dataset``.

    Raises:
        DataError: one problem for each folder that is missing or empty, or the split names no data.
    """
    wanted: list[tuple[str, str, Literal["tar", "image"], float, str | None]] = [
        (f"{path}.tar_data_sources[{i}].root_dir", source.root_dir, "tar", source.scale_factor, image_extension(source))
        for i, source in enumerate(split.tar_data_sources)
    ]
    if split.images_dir:
        wanted.append((f"{path}.images_dir", split.images_dir, "image", 1.0, None))
    if not wanted:
        hint = "Set tar_data_sources to folders of tar shards, or images_dir to a folder of images."
        raise DataError("no data is given", where=path, hint=hint)
    sources, problems = [], []
    for field, folder, kind, scale, extension in wanted:
        try:
            sources.append(_list_source(field, folder, kind, scale, extension))
        except DataError as error:
            problems.extend(error.problems)
    if problems:
        raise DataError(*problems)
    return sources


def contains_tars(folder: str) -> bool:
    """Return True if there is a tar below ``folder``, or if it cannot be read; :func:`list_shards` then raises."""
    try:
        return bool(list_files(absolute(folder), _is_tar))
    except OSError:
        return True


def _list_source(
    field: str, folder: str, kind: Literal["tar", "image"], scale: float, extension: str | None
) -> SourceFiles:
    root = absolute(folder)
    test = _is_tar if kind == "tar" else _is_image
    try:
        files = [ShardFile(name, state) for name, state in list_files(root, test)]
    except FileNotFoundError:
        raise DataError(no_such_folder(root, field)) from None
    except NotADirectoryError:
        problem = f"is {not_a_file(root) or 'a file'}, not a folder"
        raise DataError(f"the folder {root} {problem}", where=field, hint=_hint(root, kind)) from None
    except OSError as error:
        where = error.filename or root
        raise DataError(f"the folder {where} cannot be read: {error.strerror}", where=field) from None
    if not files:
        files_of = "tar shard (**/*.tar)" if kind == "tar" else f"image ({', '.join(sorted(IMAGE_EXTENSIONS))})"
        raise DataError(f"the folder {root} contains no {files_of}", where=field, hint=_hint(root, kind))
    return SourceFiles(field, root, kind, scale, files, extension)


def _hint(root: str, kind: Literal["tar", "image"]) -> str:
    """Return advice: other programs name shards one by one or by a pattern, or take a folder of images."""
    if hint := shards_hint(root):
        return hint
    if kind == "tar" and _has_images(root):
        return f"It contains images: `radioplat pack {root} SHARDS` writes shards of them; or name it in images_dir."
    return "Name the folder of the data."


def _has_images(root: str) -> bool:
    try:
        return bool(list_files(root, _is_image))
    except OSError:
        return False


def _is_tar(name: str) -> bool:
    return name.endswith(".tar")


def _is_image(name: str) -> bool:
    return name.rpartition(".")[2].lower() in IMAGE_EXTENSIONS
