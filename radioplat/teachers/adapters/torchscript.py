"""A TorchScript file as a teacher; it contains code, so it is loaded only if the spec has ``type: torchscript``."""

from __future__ import annotations

import warnings

import torch

from radioplat.errors import SpecError, WeightsError
from radioplat.models.backbones.timm_backbone import map_of
from radioplat.models.features import Features
from radioplat.spec.resolved.paths import no_such_weights
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.teachers.adapters.adapter import BOTH, Adapter, NativeInput, options_of, weights_field, weights_of


class TorchScriptTeacher(Adapter):
    """``type: torchscript``: the file contains both architecture and weights.

    It reads normalised images ``[B, 3, H, W]`` and returns one of: a map ``[B, D, h, w]``; tokens ``[B, N, D]``; or a
    pair (summary ``[B, D]``, map or tokens). ``kwargs.stride`` is needed; ``kwargs.prefix_tokens`` is the number of
    tokens before the patches (the first of them is the summary; without any, the mean of the map is). Its normalisation
    is unknown, so ``norm_mean`` and ``norm_std`` cannot be checked.
    """

    kind = "torchscript"
    structure_without_weights = False

    def __init__(self, model: torch.jit.ScriptModule, stride: int, prefix: int) -> None:
        super().__init__()
        self.model, self.stride, self.prefix = model, stride, prefix
        self.native = NativeInput(summary="first token" if prefix else "as the file gives it, or the mean of the map")

    @classmethod
    def build(cls, teacher: ResolvedTeacher) -> TorchScriptTeacher:
        """Load the file, which contains structure and weights."""
        where = f"{teacher.where}.model.backbone.kwargs"
        options, unknown = options_of(teacher, stride=None, prefix_tokens=0)
        if unknown:
            known = "A TorchScript file takes stride and prefix_tokens."
            raise SpecError(f"unknown: {', '.join(sorted(unknown))}", where=where, hint=known)
        if not isinstance(options["stride"], int) or options["stride"] < 1:
            raise SpecError("the pixels that a position covers must be given", where=f"{where}.stride")
        path, field = weights_of(teacher), weights_field(teacher)
        if not path.is_file():
            raise WeightsError(no_such_weights(path, field))
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", DeprecationWarning)  # torch.jit is deprecated; such files exist
                model = torch.jit.load(str(path), map_location="cpu")
        except (RuntimeError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise WeightsError(f"{path} is not a TorchScript file: {reason}", where=field) from None
        return cls(model, options["stride"], options["prefix_tokens"])

    def load(self, teacher: ResolvedTeacher) -> None:
        """Do nothing: the file was loaded by :meth:`build`."""

    def check(self, teacher: ResolvedTeacher) -> None:
        """Do nothing: the file was loaded by :meth:`build`."""

    def forward(self, images: torch.Tensor, wanted: frozenset[str] = BOTH) -> Features:
        """Return the wanted features of normalised images ``[B, 3, H, W]``."""
        out = self.model(images)
        summary, body = out if isinstance(out, (tuple, list)) else (None, out)
        if body.ndim == 3:
            if summary is None and self.prefix:
                summary = body[:, 0]
            body = map_of(body[:, self.prefix :], images, self.stride)
        else:
            body = body.permute(0, 2, 3, 1)
        if summary is None:
            summary = body.mean((1, 2))
        return Features(summary if "summary" in wanted else None, body if "spatial" in wanted else None)
