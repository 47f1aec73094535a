"""Spectral reparametrization: ``W = (gamma / sigma(W)) W``, sigma the largest singular value (Zhai et al. 2023).

The scale of a layer is one learned number, independent of the optimizer's updates of the matrix, so attention cannot
collapse. Sigma is ``u^T W v`` with the vectors of the power method (as in spectral normalization, Miyato et al. 2018).
They are buffers: a forward reads them, and :func:`follow` updates them once per optimizer step, so that they are the
same at any world size. q, k and v of an attention are scaled separately, as RADIO does.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn
from torch.nn.utils import parametrize

from radioplat.errors import SpecError

MARK = ".parametrizations.weight."
_QKV = ("qkv", "qkv.1")  # the second: if the layer is split into two of low rank
START = 16  # iterations of the power method before the first step


class SpectralWeight(nn.Module):
    """The parametrization of one matrix ``[out, in]``.

    Args:
        weight: the matrix at the start; gamma starts as its sigma, so the layer's output does not change.
        parts: groups of rows with a gamma each.
        iterations: of the power method, from a fixed start.
    """

    def __init__(self, weight: torch.Tensor, parts: int = 1, iterations: int = START) -> None:
        super().__init__()
        rows, columns = weight.shape
        start = torch.randn(parts, columns, generator=torch.Generator().manual_seed(0), device="cpu")
        self.noise = 0.0  # of DAMP, see radioplat.models.modifiers.damp
        self.register_buffer("u", torch.ones(parts, rows // parts, device=weight.device))
        self.register_buffer("v", F.normalize(start, dim=-1).to(weight.device))
        for _ in range(max(1, iterations)):
            self.follow(weight)
        self.gamma = nn.Parameter(_sigma(weight.detach(), self.u, self.v))

    def forward(self, weight: torch.Tensor) -> torch.Tensor:
        """Return the matrix that the layer multiplies by."""
        effective = spectral_weight(weight, self.gamma, self.u, self.v)
        if self.noise and self.training:
            effective = effective * (1 + self.noise * torch.randn_like(effective))
        return effective

    @torch.no_grad()
    def follow(self, weight: torch.Tensor) -> None:
        """Run one iteration of the power method."""
        w = _by_part(weight, self.u.shape[0])
        # Starts from v, which is random; u is all ones at first.
        u = F.normalize(torch.einsum("poi,pi->po", w, self.v.float()), dim=-1)
        v = F.normalize(torch.einsum("poi,po->pi", w, u), dim=-1)
        self.u.copy_(F.normalize(torch.einsum("poi,pi->po", w, v), dim=-1))
        self.v.copy_(v)


def spectral_weight(weight: torch.Tensor, gamma: torch.Tensor, u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Compute ``(gamma / sigma(W)) W`` by groups of rows in fp32; return ``[out, in]`` in the dtype of ``weight``."""
    factor = gamma.float() / _sigma(weight, u, v)
    return (_by_part(weight, len(gamma)) * factor[:, None, None]).reshape(weight.shape).to(weight.dtype)


def _sigma(weight: torch.Tensor, u: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
    """Return sigma ``[parts]``; u and v need not have norm 1 (in bf16 they have not quite)."""
    u, v = F.normalize(u.float(), dim=-1), F.normalize(v.float(), dim=-1)
    return torch.einsum("po,poi,pi->p", u, _by_part(weight, len(u)), v)


def _by_part(weight: torch.Tensor, parts: int) -> torch.Tensor:
    return weight.float().reshape(parts, weight.shape[0] // parts, weight.shape[1])


def reparametrize(backbone: nn.Module, iterations: int = START) -> None:
    """Give every linear layer of a ViT's blocks a :class:`SpectralWeight`; outputs do not change.

    Raises:
        SpecError: ``backbone`` is no ViT.
    """
    blocks = getattr(getattr(backbone, "model", backbone), "blocks", None)
    linears = [] if blocks is None else [(n, m) for n, m in blocks.named_modules() if type(m) is nn.Linear]
    if not any(name.endswith(_QKV) for name, _ in linears):
        raise SpecError("this backbone is no ViT", where="model.backbone.spectral_reparam", hint="Set it to false.")
    for name, linear in linears:
        parts = 3 if name.endswith(_QKV) else 1
        scaling = SpectralWeight(linear.weight, parts, iterations)
        parametrize.register_parametrization(linear, "weight", scaling)


def follow(module: nn.Module) -> None:
    """Run one iteration of the power method for every matrix in ``module``; to be called after each optimizer step."""
    follow_layers(layers_of(module))


def follow_layers(layers: list[nn.Module]) -> None:
    """Run one iteration of the power method for each of ``layers``, which :func:`layers_of` returned."""
    for layer in layers:
        layer.parametrizations.weight[0].follow(layer.parametrizations.weight.original)


def materialise(module: nn.Module) -> None:
    """Replace every :class:`SpectralWeight` by a plain weight; outputs do not change."""
    for layer in layers_of(module):
        layer.parametrizations.weight[0].noise = 0.0
        parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)


def plain_tensors(tensors: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Return a checkpoint's tensors with plain weights, by the plain layers' names."""
    plain = {name: tensor for name, tensor in tensors.items() if MARK not in name}
    for name, weight in tensors.items():
        if name.endswith(f"{MARK}original"):
            base = name.removesuffix("original")
            gamma, u, v = (tensors[f"{base}0.{part}"] for part in ("gamma", "u", "v"))
            plain[name.replace(f"{MARK}original", ".weight")] = spectral_weight(weight, gamma, u, v)
    return plain


def layers_of(module: nn.Module) -> list[nn.Module]:
    """Return the layers of ``module`` whose weight is a :class:`SpectralWeight`."""
    return [
        m
        for m in module.modules()
        if parametrize.is_parametrized(m, "weight") and isinstance(m.parametrizations.weight[0], SpectralWeight)
    ]
