"""The base class of adapters, which build a teacher's structure first and load its weights later."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import nn

from radioplat.errors import SpecError, WeightsError
from radioplat.models.capture import as_features
from radioplat.models.features import Features
from radioplat.models.weights.read import fit, read_weights
from radioplat.spec.resolved.teacher import ResolvedTeacher

BOTH = frozenset({"summary", "spatial"})


@dataclass(frozen=True)
class NativeInput:
    """Inputs that a model was trained with, and what its summary is, as far as they are known.

    Attributes:
        mean, std: normalisation of images in [0, 1]; None if unknown.
        size: side in pixels of the images; None: any.
        summary: description of its summary vector.
        text_tower: OpenCLIP's ``name:tag`` of the text tower whose space its summary is in; empty: none or unknown.
    """

    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    size: int | None = None
    summary: str = ""
    text_tower: str = ""


class Adapter(nn.Module):
    """Base class of adapters: a model as a teacher.

    A subclass builds the structure (:meth:`build`) and loads the weights (:meth:`load`). ``build`` runs on the meta
    device when only the structure is needed, so it must not read values.

    Attributes:
        stride: pixels that a position of the map covers.
        needs_multiple: whether sides of images must be multiples of the patch size.
        multiple: that patch size in pixels, if the map is finer than the patches; 0: the stride.
        logits_dim: number of classes of its classifier, 0 for none.
        class_names: of its classifier, in their order; empty if unknown.
        native: see :class:`NativeInput`.
        in_fp32: whether it computes in fp32 if the spec leaves the precision open.
        version: increased when the features of this kind change for the same weights, so that cached ones are not used.
    """

    kind: ClassVar[str]
    version: ClassVar[int] = 2
    structure_without_weights: ClassVar[bool] = True
    in_fp32: ClassVar[bool] = False
    stride: int
    needs_multiple: bool = False
    multiple: int = 0
    logits_dim: int = 0
    class_names: tuple[str, ...] = ()
    native: NativeInput = NativeInput()

    @classmethod
    def build(cls, teacher: ResolvedTeacher) -> Adapter:
        """Build the structure that ``teacher`` names, without weights.

        Raises:
            SpecError: the structure does not exist, or rejects its arguments.
        """
        raise NotImplementedError

    def load(self, teacher: ResolvedTeacher) -> None:
        """Load the weights.

        Raises:
            WeightsError: they cannot be read or do not fit.
        """
        self.target.load_state_dict(self.fitting(teacher))

    def check(self, teacher: ResolvedTeacher) -> None:
        """Read the weights and check that they fit; ``self`` may be on the meta device.

        Raises:
            WeightsError: as :meth:`load`.
        """
        self.fitting(teacher)

    @property
    def target(self) -> nn.Module:
        """The module whose names the weights file uses."""
        return self

    def fitting(self, teacher: ResolvedTeacher) -> dict[str, torch.Tensor]:
        """Return the tensors of the teacher's file by the names of :attr:`target`."""
        where = weights_field(teacher)
        return fit(self.target, read_weights(weights_of(teacher), where), weights_of(teacher), where)

    def as_named(self, output: torch.Tensor, grid: tuple[int, int]) -> torch.Tensor:
        """Convert a module's output for bindings; ``grid`` is of the model's own map."""
        return as_features(output, grid)

    def forward(self, images: torch.Tensor, wanted: frozenset[str] = BOTH) -> Features:
        """Return the wanted ones of summary ``[B, D]``, spatial ``[B, h, w, D]`` and logits.

        Args:
            images: normalised, ``[B, 3, H, W]``.
            wanted: ``summary``, ``spatial``, ``logits``.
        """
        raise NotImplementedError


def weights_field(teacher: ResolvedTeacher) -> str:
    """Return the spec field that names the weights."""
    if teacher.ensemble or teacher.member is not None:
        return f"{teacher.where}.ensemble[{teacher.member or 0}]"
    return f"{teacher.where}.pretrained_teacher_model_path"


def weights_of(teacher: ResolvedTeacher) -> Path:
    """Return the path of the weights.

    Raises:
        WeightsError: the spec names none.
    """
    if not teacher.weights:
        raise WeightsError("a teacher needs trained weights", where=weights_field(teacher))
    return Path(teacher.weights)


def options_of(teacher: ResolvedTeacher, **defaults: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """Split ``model.backbone.kwargs``: the adapter's own options, and arguments of the architecture.

    Args:
        defaults: the options by name. A tuple lists the values allowed, the default first.

    Raises:
        SpecError: an option has a value that is not allowed.
    """
    kwargs = dict(teacher.backbone.kwargs)
    options = {}
    for name, default in defaults.items():
        allowed = default if isinstance(default, tuple) else None
        value = kwargs.pop(name, allowed[0] if allowed else default)
        if allowed and value not in allowed:
            raise SpecError(
                f"{value!r} is not one of {', '.join(str(a) for a in allowed)}",
                where=f"{teacher.where}.model.backbone.kwargs.{name}",
            )
        options[name] = value
    return options, kwargs


def refuse_kwargs(teacher: ResolvedTeacher, file: str) -> None:
    """Refuse ``model.backbone.kwargs`` of a teacher whose file describes all of it.

    Args:
        file: the kind of file.

    Raises:
        SpecError: there are such arguments.
    """
    if kwargs := teacher.backbone.kwargs:
        message = f"{file} describes the model itself and takes no arguments: {', '.join(sorted(kwargs))}"
        raise SpecError(message, where=f"{teacher.where}.model.backbone.kwargs", hint="Remove them.")
