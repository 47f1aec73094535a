"""Target normalization of a head: between a teacher's raw features and the space in which losses compare.

A head's layers compute transformed targets y' = W (y - mu). The transform is stored in buffers of the head, so that a
checkpoint's heads can return raw features: y = W^-1 y' + mu.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import nn

# Forms of W: one number, one number for each dimension, or a matrix. LAYER is no such map: it normalises each vector.
SCALAR, CHANNELS, MATRIX, LAYER = "scalar", "channels", "matrix", "layer"
_PARTS = ("mean", "scale", "rotation", "inverse")


class TargetSpaces(nn.Module):
    """A module with transforms by ``kind`` (``summary``, ``spatial``), in fp32 whatever the module is cast to.

    Buffers: ``<kind>_mean`` ``[D]`` with ``<kind>_scale`` (``[]``, or ``[D]`` for ``channels``; W is its inverse), or
    for ``matrix`` with ``<kind>_rotation`` W and ``<kind>_inverse``, ``[D, D]`` each. They are initialised to the
    identity. Kinds of the form ``layer`` have the identity's buffers: a vector's own mean and variance are not kept, so
    their raw features are the normalised ones.
    """

    def register_space(self, kind: str, width: int, form: str = SCALAR) -> None:
        """Register the identity of ``width`` dimensions as the transform of ``kind``; ``form`` is the form of W."""
        for part in _PARTS:
            self._buffers.pop(f"{kind}_{part}", None)
        self.register_buffer(f"{kind}_mean", torch.zeros(width))
        if form == MATRIX:
            self.register_buffer(f"{kind}_rotation", torch.eye(width))
            self.register_buffer(f"{kind}_inverse", torch.eye(width))
        else:
            self.register_buffer(f"{kind}_scale", torch.ones(width if form == CHANNELS else ()))
        self.layer_normed = {*getattr(self, "layer_normed", set()), kind} - ({kind} if form != LAYER else set())

    def form(self, kind: str) -> str:
        """Return ``scalar``, ``channels``, ``matrix`` or ``layer``."""
        if kind in self.layer_normed:
            return LAYER
        if f"{kind}_rotation" in self._buffers:
            return MATRIX
        return CHANNELS if getattr(self, f"{kind}_scale").ndim else SCALAR

    def standardize(self, kind: str, features: torch.Tensor) -> torch.Tensor:
        """Transform raw features ``[..., D]`` of the teacher for the losses, fp32; other kinds are not changed."""
        if f"{kind}_mean" not in self._buffers:
            return features.float()
        if kind in self.layer_normed:
            return F.layer_norm(features.float(), features.shape[-1:])
        centred = features.float() - getattr(self, f"{kind}_mean").float()
        if self.form(kind) == MATRIX:
            return centred @ getattr(self, f"{kind}_rotation").float().T
        return centred / getattr(self, f"{kind}_scale").float()

    def raw(self, kind: str, standardized: torch.Tensor) -> torch.Tensor:
        """Inverse of :meth:`standardize`; fp32."""
        # In fp32: in bf16 a mean that is large compared with the standard deviation loses precision.
        standardized, mean = standardized.float(), getattr(self, f"{kind}_mean").float()
        if self.form(kind) == MATRIX:
            return standardized @ getattr(self, f"{kind}_inverse").float().T + mean
        return standardized * getattr(self, f"{kind}_scale").float() + mean

    @torch.no_grad()
    def set_space(self, kind: str, **parts: torch.Tensor) -> None:
        """Copy ``mean`` and ``scale``, or ``mean``, ``rotation`` and ``inverse``, into the buffers of ``kind``."""
        for part, value in parts.items():
            getattr(self, f"{kind}_{part}").copy_(value)

    def _apply(self, fn: Callable[[torch.Tensor], torch.Tensor], recurse: bool = True) -> TargetSpaces:
        """Apply ``fn`` as ``nn.Module`` does, but keep the dtype of the transforms' buffers.

        bf16 has three digits: in a rotation that causes errors of 1 % of the targets, in a mean errors larger than the
        standard deviation.
        """
        before = {name: value for name, value in self._buffers.items() if name.endswith(_PARTS)}
        super()._apply(fn, recurse)
        for name, value in before.items():
            after = self._buffers[name]
            if after.dtype in (torch.bfloat16, torch.float16):
                self._buffers[name] = after.float() if value.is_meta else value.to(after.device)
        return self
