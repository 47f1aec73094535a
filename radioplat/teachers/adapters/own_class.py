"""A user's own class as a teacher, by its import path."""

from __future__ import annotations

import importlib

import torch
from torch import nn

from radioplat.errors import SpecError
from radioplat.models.features import Features
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.teachers.adapters.adapter import BOTH, Adapter, Wants


class OwnClassTeacher(Adapter):
    """``type: my_package.module:ClassName``.

    The class is an ``nn.Module`` that takes ``model.backbone.kwargs`` and whose ``forward(images, wanted)`` returns
    :class:`~radioplat.models.features.Features` of normalised images. It declares ``stride``, and may declare
    ``needs_multiple``, ``logits_dim``, ``mean``, ``std`` and ``native_size``. Its weights are loaded by us, into its
    ``state_dict``. It must be importable where the teacher runs.
    """

    kind = "class"

    def __init__(self, model: nn.Module, where: str) -> None:
        super().__init__()
        if not isinstance(getattr(model, "stride", None), int):
            raise SpecError(f"{type(model).__name__} declares no integer `stride`", where=where)
        self.model = model
        self.stride = model.stride
        self.needs_multiple = bool(getattr(model, "needs_multiple", False))
        self.logits_dim = int(getattr(model, "logits_dim", 0))
        mean, std = getattr(model, "mean", None), getattr(model, "std", None)
        self.wants = Wants(
            tuple(mean) if mean is not None else None,
            tuple(std) if std is not None else None,
            getattr(model, "native_size", None),
            "as the class gives it",
        )

    @classmethod
    def build(cls, teacher: ResolvedTeacher) -> OwnClassTeacher:
        """See :class:`Adapter`."""
        where = f"{teacher.where}.model.backbone"
        path = teacher.backbone.type or ""
        module_name, _, class_name = path.partition(":")
        try:
            found = getattr(importlib.import_module(module_name), class_name)
        except (ImportError, AttributeError) as error:
            raise SpecError(
                f"cannot import {path}: {error}",
                where=f"{where}.type",
                hint="It must be on the PYTHONPATH of every worker, as package.module:ClassName.",
            ) from None
        if not (isinstance(found, type) and issubclass(found, nn.Module)):
            raise SpecError(f"{path} is no torch.nn.Module class", where=f"{where}.type")
        try:
            return cls(found(**teacher.backbone.kwargs), f"{where}.type")
        except (TypeError, ValueError) as error:
            raise SpecError(f"{class_name} refuses its arguments: {error}", where=f"{where}.kwargs") from None

    @property
    def target(self) -> nn.Module:
        """The user's module."""
        return self.model

    def forward(self, images: torch.Tensor, wanted: frozenset[str] = BOTH) -> Features:
        """See :class:`Adapter`."""
        return self.model(images, wanted)
