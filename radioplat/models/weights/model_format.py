"""Model files of radioplat: safetensors with the architecture in their metadata, and EMA weights in a separate file.

A run that averages its weights also writes ``ema.safetensors``: the averages of the tensors that have one.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

import safetensors
import torch
from safetensors.torch import load_file, save_file

from radioplat import __version__
from radioplat.common.unknown_fields import unknown_fields
from radioplat.errors import RadioplatError, WeightsError
from radioplat.models.weights.manifest import require_unchanged
from radioplat.models.weights.read import load_into, require_finite
from radioplat.models.weights.stored_numbers import require_plausible

EMA_FILE = "ema.safetensors"
VERSION_KEY = "radioplat.version"  # key in the metadata
Files = dict[str, tuple[dict[str, torch.Tensor], dict[str, str]]]  # tensors and metadata by file name
ArchitectureT = TypeVar("ArchitectureT")
ModelT = TypeVar("ModelT")


@dataclass(frozen=True)
class Format(Generic[ArchitectureT, ModelT]):
    """The files of one kind of model.

    Attributes:
        prefixes: prefix of the tensor names in each file, by file name; the first file has all other tensors.
        key: of the architecture, in the metadata of those files.
        architecture: its class, with ``to_json`` and ``from_json``.
        build: builds an untrained model from an architecture and the spec field of its path, for messages.
    """

    prefixes: dict[str, str]
    key: str
    architecture: Any
    build: Callable[[ArchitectureT, str], ModelT]

    @property
    def file_names(self) -> tuple[str, ...]:
        """Names of all files with weights."""
        return tuple(self.prefixes)

    def files(self, architecture: Any, tensors: dict[str, torch.Tensor]) -> Files:
        """Return the files' content: fp32 tensors, and the metadata; ``tensors`` as in ``state_dict``."""
        metadata = {self.key: architecture.to_json(), VERSION_KEY: __version__, "format": "pt"}
        files: Files = {file: ({}, metadata) for file in self.prefixes}
        for name, tensor in tensors.items():
            file = next(file for file in reversed(self.prefixes) if name.startswith(self.prefixes[file]))
            files[file][0][name] = tensor.float() if tensor.is_floating_point() else tensor
        return files

    def holds(self, path: str | Path) -> bool:
        """Return whether ``path`` is a folder, or one safetensors file, that :meth:`load` can open."""
        path = Path(path)
        if path.suffix != ".safetensors" or not path.is_file():
            return (path / self.file_names[0]).is_file()
        try:
            with safetensors.safe_open(path, "pt") as opened:
                return self.key in (opened.metadata() or {})
        except (safetensors.SafetensorError, OSError):
            return False

    def read_architecture(self, path: str | Path, where: str = "") -> ArchitectureT:
        """Read the architecture that a model was saved with; no tensor is read.

        Args:
            path: as of :meth:`load`.

        Raises:
            WeightsError: there is no such model at ``path``, or this version cannot read its architecture.
        """
        file = Path(path) if Path(path).is_file() else Path(path) / self.file_names[0]
        if not file.is_file():
            raise WeightsError(
                f"{path} is not a checkpoint folder (it holds no {file.name})",
                where=where,
                hint="Give a model_epoch_... folder or the model_latest link.",
            )
        try:
            with safetensors.safe_open(file, "pt") as opened:
                metadata = opened.metadata() or {}
        except (safetensors.SafetensorError, OSError) as error:
            raise WeightsError(f"{file} is not a whole safetensors file: {error}", where=where) from None
        if self.key not in metadata:
            raise WeightsError(f"{file} does not say which architecture it holds", where=where)
        require_plausible(metadata[self.key], file, where)
        try:
            return self.architecture.from_json(metadata[self.key])
        except (ValueError, KeyError, TypeError, AttributeError):
            raise self._unknown_form(file, metadata, where) from None

    def read_tensors(self, path: str | Path, where: str = "") -> dict[str, torch.Tensor]:
        """Read all tensors of a checkpoint, fp32, without averages.

        Raises:
            WeightsError: a file is missing or damaged.
        """
        path = Path(path)
        tensors: dict[str, torch.Tensor] = {}
        for file in (path,) if path.is_file() else [path / name for name in self.prefixes]:
            try:
                tensors.update(load_file(file))
            except (safetensors.SafetensorError, OSError) as error:
                raise WeightsError(f"{file} cannot be read: {error}", where=where) from None
        return tensors

    def read(
        self, path: str | Path, where: str = "", ema: bool | None = None, verify: bool = True
    ) -> tuple[ArchitectureT, dict[str, torch.Tensor]]:
        """Read architecture and tensors; arguments and errors as of :meth:`load`."""
        architecture = self.read_architecture(path, where)
        if verify:
            require_unchanged(path, (*self.prefixes, *(() if ema is False else (EMA_FILE,))), where)
        if ema and not has_average(path):
            hint = "The run that wrote it had train.enable_ema=false."
            raise WeightsError(f"{path} has no EMA weights", where=where, hint=hint)
        tensors = self.read_tensors(path, where) | ({} if ema is False else read_average(path, where))
        require_finite(tensors, path, where)
        return architecture, tensors

    def load(self, path: str | Path, where: str = "", ema: bool | None = None, verify: bool = True) -> ModelT:
        """Open a model, in fp32 and evaluation mode, on the CPU.

        Args:
            path: a checkpoint folder (``results/distill/model_latest``), or the file of ``export.format: safetensors``.
            where: the spec field of the path, for messages.
            ema: True for the averaged weights, False for the plain ones; None for the averaged if there are any.
            verify: compare the files with the checkpoint's ``manifest.json``, which reads them once more.

        Raises:
            WeightsError: the folder is no checkpoint, is damaged, differs from its manifest, contains a NaN, or lacks
                the requested averages.
        """
        architecture, tensors = self.read(path, where, ema, verify)
        try:
            model: Any = self.build(architecture, where)
        except RadioplatError:
            raise
        except Exception as error:  # torch and timm raise many types for sizes that cannot be
            message = f"{path} describes a model that cannot be built: {type(error).__name__}: {error}"
            raise WeightsError(message.splitlines()[0], where=where) from None
        load_into(model, tensors, path, where)
        return model.eval()

    def _unknown_form(self, file: Path, metadata: Mapping[str, str], where: str) -> WeightsError:
        """Return the error for metadata of another version, with the fields that differ and both versions."""
        try:
            fields = unknown_fields(json.loads(metadata[self.key]), self.architecture)
        except ValueError:
            fields = []
        part = f" ({self.key}: {', '.join(fields)})" if fields else f" ({self.key})"
        return WeightsError(
            f"{file} describes a model that radioplat {__version__} cannot read{part}; {written_by(metadata)}",
            where=where,
            hint="Use the version that wrote it.",
        )


def save_files(files: Files, folder: Path) -> None:
    """Write tensors and metadata into ``folder``, by the names of their files."""
    for name, (tensors, metadata) in files.items():
        save_file({k: v.contiguous() for k, v in tensors.items()}, folder / name, metadata)


def written_by(metadata: Mapping[str, str]) -> str:
    """Describe which version wrote a file with this metadata."""
    version = metadata.get(VERSION_KEY)
    return f"it was written by radioplat {version}" if version else "it does not say which version wrote it"


def has_average(path: str | Path) -> bool:
    """Return whether a checkpoint folder contains EMA weights."""
    return (Path(path) / EMA_FILE).is_file()


def read_average(path: str | Path, where: str = "") -> dict[str, torch.Tensor]:
    """Read the EMA weights and statistics of a checkpoint folder, fp32; empty if the run kept none.

    Raises:
        WeightsError: the file is damaged.
    """
    try:
        return load_file(Path(path) / EMA_FILE) if has_average(path) else {}
    except (safetensors.SafetensorError, OSError) as error:
        raise WeightsError(f"{Path(path) / EMA_FILE} cannot be read: {error}", where=where) from None
