"""Write ONNX files to a temporary folder and rename them when complete."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from radioplat.errors import EngineError

if TYPE_CHECKING:
    import onnx

ONE_FILE_BYTES = 1_900_000_000  # protobuf's limit is 2 GiB


def open_partial_folder(path: Path, allow_folder: bool = False) -> Path:
    """Create a temporary folder next to ``path``, from which the finished files are renamed.

    Raises:
        EngineError: ``path`` is a folder without ``allow_folder``, or its folder cannot be written.
    """
    if path.is_dir() and not allow_folder:
        raise EngineError("this is a folder, not a file name", where=str(path), hint="Give the name of a file.")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return Path(tempfile.mkdtemp(prefix=f".{path.name}.", dir=path.parent))
    except OSError as error:
        raise EngineError(f"cannot write here: {error.strerror}", where=str(path.parent)) from error


def save(model: onnx.ModelProto, file: Path) -> None:
    """Write ``model`` to ``file``; more weights than :data:`ONE_FILE_BYTES` go to ``<file>.data``."""
    import onnx  # weights in other formats are exported without it

    size = sum(len(tensor.raw_data) for tensor in model.graph.initializer)
    for old in (file, file.with_name(f"{file.name}.data")):
        old.unlink(missing_ok=True)
    onnx.save(model, str(file), save_as_external_data=size > ONE_FILE_BYTES, location=f"{file.name}.data")


def publish(folder: Path, path: Path) -> None:
    """Move the finished files to ``path``, weights before the graph; delete the weights file of an older export."""
    weights = f"{path.name}.data"
    if (folder / weights).exists():
        os.replace(folder / weights, path.with_name(weights))
        os.replace(folder / path.name, path)
    else:
        os.replace(folder / path.name, path)
        path.with_name(weights).unlink(missing_ok=True)
