"""Peers: networks that train with the student and teach it (deep mutual learning, Zhang et al. 2018).

Each of K networks learns from labels and from what the others say, equation 8 there:

    L_k = alpha CE(labels) + (1 - alpha) 1/(K-1) sum over l != k of D(p_l || p_k)

with D the loss of the spec, and no gradient into the one that teaches. The student's part is that of any teacher. A
peer's own part is here: of class scores the others are the student, by its head for this peer, and the other peers;
of features it is the student alone, as every peer has a space of its own.
"""

from __future__ import annotations

import zlib
from collections.abc import Mapping

import numpy as np
import torch
from torch import nn

from radioplat.models.capture import as_features, captured
from radioplat.models.features import Features
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.spec.resolved.terms import MODULE
from radioplat.teachers.adapters.registry import adapter_class

PREFIX = "peers."  # before the names of their tensors in a checkpoint and among the module's parameters


class Peer(nn.Module):
    """A teacher's backbone, trainable; from its weights where it has any, else from a seeded start.

    Raises:
        SpecError, WeightsError: it cannot be built or loaded.
    """

    def __init__(self, teacher: ResolvedTeacher, seed: int) -> None:
        super().__init__()
        key = np.random.SeedSequence([seed, zlib.crc32(teacher.name.encode())])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(int(key.generate_state(1, np.uint64)[0] >> 1))
            self.model = adapter_class(teacher).build(teacher)
        if teacher.weights:
            self.model.load(teacher)
        self.modules_wanted = teacher.modules
        self.register_buffer("mean", torch.tensor(teacher.norm_mean).view(1, 3, 1, 1) * 255, persistent=False)
        self.register_buffer("std", torch.tensor(teacher.norm_std).view(1, 3, 1, 1) * 255, persistent=False)

    def forward(self, images: torch.Tensor, wanted: frozenset[str]) -> Features:
        """uint8 ``[B, 3, H, W]`` to what is ``wanted``, fp32, with a gradient."""
        normalised = (images.float() - self.mean.float()) / self.std.float()
        with captured(self.model.target, self.modules_wanted) as outputs:
            features = self.model(normalised.to(next(self.model.parameters()).dtype), wanted)
        grid = images.shape[-2] // self.model.stride, images.shape[-1] // self.model.stride
        features.named |= {MODULE + name: as_features(output, grid) for name, output in outputs.items()}
        return features.map(lambda t: t.float())


def peer_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """The trainable parameters of all peers by their names in ``module``; {} where it has none."""
    return {name: p for name, p in module.named_parameters() if name.startswith(PREFIX) and p.requires_grad}


def peer_buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    """The buffers of all peers that a checkpoint keeps, by their names in ``module``."""
    peers = getattr(module, "peers", None)
    if peers is None:
        return {}
    kept = set(peers.state_dict())
    return {f"{PREFIX}{name}": buffer for name, buffer in peers.named_buffers() if name in kept}


def restore_peers(module: nn.Module, saved: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Put what a checkpoint kept of the peers back; call it before an engine cuts them up.

    Returns:
        The parameters as they are now, fp32 on the CPU; a peer that the checkpoint does not know starts anew.
    """
    parameters = peer_parameters(module)
    with torch.no_grad():
        for name, tensor in {**parameters, **peer_buffers(module)}.items():
            if name in saved:
                tensor.copy_(saved[name])
    return {name: parameter.detach().float().cpu().clone() for name, parameter in parameters.items()}
