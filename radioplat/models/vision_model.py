"""The common interface of students and detectors, and how they are opened and saved.

A further kind of model is a class with the members of :class:`VisionModel`, a :class:`ModelKind`, and an entry in
:data:`FORMATS`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import nn

from radioplat.models.detectors.checkpoint import DETECTOR
from radioplat.models.model_kind import ModelKind
from radioplat.models.quantized.architecture import Quantization
from radioplat.models.student.architecture import StudentArchitecture
from radioplat.models.student.checkpoint import STUDENT
from radioplat.models.weights.model_format import Files, Format, save_files


class Architecture(Protocol):
    """Everything needed to build a model but its weights."""

    @property
    def student(self) -> StudentArchitecture:
        """The architecture of the student that has the backbone: of a student, itself."""
        ...

    @property
    def img_size(self) -> int:
        """Training resolution in pixels."""
        ...

    @property
    def quantizations(self) -> Mapping[str, Quantization]:
        """Quantized layers, by the prefix that their names lack in the model; empty for a float model."""
        ...

    @property
    def quantized(self) -> Quantization | None:
        """The quantizers of the model itself; a detector's backbone has its own. None for none."""
        ...

    def with_quantization(self, quantized: Quantization) -> Architecture:
        """Return this architecture with quantizers, whose names are those of the built model."""
        ...

    def to_json(self) -> str:
        """Return the JSON text in its file."""
        ...


class VisionModel(Protocol):
    """Common members of a student and a detector; both are ``nn.Module``.

    Attributes:
        model_kind: key of the tables that choose a function by kind.
        whole_images: whether it is calibrated on complete images, not on crops.
        backbone_name: name of the module ``backbone``.
        name_prefixes: prefixes of layer names that patterns of a spec may leave out, the longest first.
        head_names: teachers that it has a head for.
    """

    model_kind: ModelKind
    whole_images: bool
    backbone_name: str

    @property
    def architecture(self) -> Architecture:
        """The architecture that it was built from."""
        ...

    @property
    def backbone(self) -> nn.Module:
        """The module that computes features of images."""
        ...

    @property
    def stride(self) -> int:
        """Pixels that a position of the map covers; sides of images are multiples of it."""
        ...

    @property
    def head_names(self) -> list[str]:
        """Teachers that the model has a head for."""
        ...

    @property
    def name_prefixes(self) -> list[str]:
        """Prefixes of layer names that patterns of a spec may leave out, the longest first."""
        ...

    def float_layers(self) -> dict[str, str]:
        """Return layers that stay float when it is quantized, unless a rule names them, and why."""
        ...

    def feature_probe(self, images: torch.Tensor) -> Sequence[tuple[str, torch.Tensor]]:
        """Return tensors by kind, channels last, that show whether a change of the model changed its features."""
        ...

    def run_all(self, images: torch.Tensor) -> None:
        """Run every part, heads included, on uint8, or floats in [0, 1], ``[B, 3, H, W]``."""
        ...

    def fuse_branches(self) -> VisionModel:
        """Make blocks of several branches one convolution each, in place; evaluation stays the same."""
        ...

    def named_modules(self, *args: Any, **kwargs: Any) -> Any:
        """As ``nn.Module``'s."""
        ...

    def get_submodule(self, target: str) -> Any:
        """As ``nn.Module``'s."""
        ...

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """As ``nn.Module``'s."""
        ...


FORMATS: dict[ModelKind, Format] = {ModelKind.detector: DETECTOR, ModelKind.student: STUDENT}


def model_kind(path: str | Path) -> ModelKind | None:
    """Return the kind of the model at ``path``, a checkpoint folder or one safetensors file; None for anything else."""
    return next((kind for kind, form in FORMATS.items() if form.holds(path)), None)


def weight_files(path: str | Path) -> list[Path]:
    """Return the files with the weights of the model at ``path``, without averages."""
    path = Path(path)
    names = [name for form in FORMATS.values() for name in form.file_names]
    return [path] if path.is_file() else [path / name for name in names if (path / name).is_file()]


def open_architecture(path: str | Path, where: str = "") -> Architecture:
    """Read the architecture that the model at ``path`` was saved with; no tensor is read.

    Raises:
        WeightsError: there is no model, or its file is damaged.
    """
    return FORMATS[model_kind(path) or ModelKind.student].read_architecture(path, where)


def open_model(path: str | Path, where: str = "", ema: bool | None = None) -> VisionModel:
    """Open the model at ``path``, in fp32 and evaluation mode, on the CPU.

    Args:
        path: a checkpoint folder, or the file of ``export.format: safetensors``.
        where: the spec field of the path, for messages.
        ema: True for the averaged weights, False for the plain ones; None for the averaged if there are any.

    Raises:
        WeightsError: there is no model, it is damaged, contains a NaN, or lacks the requested averages.
    """
    return FORMATS[model_kind(path) or ModelKind.student].load(path, where, ema)  # raises if there is no model


def model_files(model: VisionModel, tensors: dict[str, torch.Tensor]) -> Files:
    """Return the files of ``model`` by name, fp32; ``tensors`` has the names of its ``state_dict``."""
    return FORMATS[model.model_kind].files(model.architecture, tensors)


def save_model(model: VisionModel, folder: Path) -> None:
    """Write ``model``, fp32, into ``folder``, which is created if missing; :func:`open_model` opens it."""
    folder.mkdir(parents=True, exist_ok=True)
    save_files(model_files(model, model.state_dict()), folder)
