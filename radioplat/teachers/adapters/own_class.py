"""A user's own class as a teacher, by its import path."""

from __future__ import annotations

from typing import Any

import torch
from torch import nn

from radioplat.common.imports import import_object
from radioplat.errors import SpecError
from radioplat.models.features import Features
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.teachers.adapters.adapter import BOTH, Adapter, NativeInput

_ON_META = "It is first built and run on torch's meta device, where tensors have shapes but no values."


class OwnClassTeacher(Adapter):
    """``type: my_package.module:ClassName``.

    The class is an ``nn.Module`` that is built from ``model.backbone.kwargs`` and has:

    - ``stride``: pixels a side that one position of its map covers, an int;
    - ``forward(images, wanted)``: normalised images ``[B, 3, H, W]`` to :class:`~radioplat.models.features.Features`
      with, of what ``wanted`` lists, ``summary [B, D]``, ``spatial [B, h, w, D]`` with ``h`` near ``H / stride``, and
      ``named["logits"] [B, logits_dim]``, all floating point.

    It may have ``needs_multiple`` (images must be a multiple of the stride), ``logits_dim``, ``mean``, ``std`` and
    ``native_size``. The weights file is loaded into its ``state_dict``. It must be importable where the teacher runs.
    """

    kind = "class"

    def __init__(self, model: nn.Module, where: str) -> None:
        super().__init__()
        name = type(model).__name__
        if not isinstance(getattr(model, "stride", None), int) or model.stride < 1:
            raise SpecError(f"{name} has no positive integer `stride`", where=where)
        if type(model).forward is nn.Module.forward:
            raise SpecError(f"{name} has no method forward(images, wanted)", where=where)
        self.model, self.where = model, where
        self.stride = model.stride
        self.needs_multiple = bool(getattr(model, "needs_multiple", False))
        self.logits_dim = int(getattr(model, "logits_dim", 0))
        mean, std = getattr(model, "mean", None), getattr(model, "std", None)
        self.native = NativeInput(
            tuple(mean) if mean is not None else None,
            tuple(std) if std is not None else None,
            getattr(model, "native_size", None),
            "as the class returns it",
        )

    @classmethod
    def build(cls, teacher: ResolvedTeacher) -> OwnClassTeacher:
        """Build the structure without weights."""
        where = f"{teacher.where}.model.backbone"
        path = teacher.backbone.type or ""
        own_class = import_object(path, f"{where}.type")
        if not (isinstance(own_class, type) and issubclass(own_class, nn.Module)):
            raise SpecError(f"{path} is no torch.nn.Module class", where=f"{where}.type")
        try:
            model = own_class(**teacher.backbone.kwargs)
        except Exception as error:  # a user's constructor may raise anything
            message = f"{own_class.__name__} cannot be built with these arguments: {_first_line(error)}"
            raise SpecError(message, where=f"{where}.kwargs", hint=_ON_META) from None
        return cls(model, f"{where}.type")

    @property
    def target(self) -> nn.Module:
        """The user's module."""
        return self.model

    def forward(self, images: torch.Tensor, wanted: frozenset[str] = BOTH) -> Features:
        """Return the wanted features of normalised images ``[B, 3, H, W]``.

        Raises:
            SpecError: the class returned no Features, lacks what was wanted, or a tensor has a wrong shape or dtype.
        """
        try:
            features = self.model(images, wanted)
        except Exception as error:  # a user's forward may raise anything
            if not images.is_meta:
                raise  # in a run the caller handles it, for example out of memory
            message = f"forward of images {[*images.shape]} raised {type(error).__name__}: {_first_line(error)}"
            raise self._error(message, _ON_META) from None
        if not isinstance(features, Features):
            hint = "Return radioplat.models.features.Features(summary, spatial)."
            raise self._error(f"forward returned {type(features).__name__}, not Features", hint)
        batch, _, height, width = images.shape
        self._require("summary", features.summary, wanted, (batch, None))
        self._require("spatial", features.spatial, wanted, (batch, None, None, None))
        self._require("logits", features.named.get("logits"), wanted, (batch, self.logits_dim))
        if "spatial" in wanted and features.spatial is not None:
            rows, columns = features.spatial.shape[1:3]
            if not (self._covers(height, rows) and self._covers(width, columns)):
                message = (
                    f"spatial of images of {height} x {width} pixels has {rows} x {columns} positions, and the stride "
                    f"{self.stride} means {height // self.stride} x {width // self.stride}"
                )
                raise self._error(message, "The map is [B, h, w, D], channels last.")
        return features

    def _covers(self, pixels: int, positions: int) -> bool:
        return positions in (pixels // self.stride, -(-pixels // self.stride))

    def _require(self, kind: str, value: Any, wanted: frozenset[str], shape: tuple[int | None, ...]) -> None:
        """Raise unless ``value`` is a floating-point tensor of ``shape``, in which None is any positive number."""
        if kind not in wanted:
            return
        expected = f"[{', '.join('*' if n is None else str(n) for n in shape)}]"
        if not isinstance(value, torch.Tensor):
            raise self._error(f"forward returned no {kind}, where a tensor {expected} was wanted")
        fits = value.ndim == len(shape) and all(n in (None, m) and m for n, m in zip(shape, value.shape, strict=True))
        if not fits:
            raise self._error(f"{kind} has the shape {[*value.shape]}, not {expected}")
        if not value.is_floating_point():
            raise self._error(f"{kind} is {value.dtype}, not floating point")

    def _error(self, message: str, hint: str = "") -> SpecError:
        return SpecError(f"{type(self.model).__name__}: {message}", where=self.where, hint=hint)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
