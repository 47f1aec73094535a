"""Peers: networks that train with the student and teach it (deep mutual learning, Zhang et al. 2018).

Each of K networks learns from the labels and from the outputs of the others, equation 8 there:

    L_k = alpha CE(labels) + (1 - alpha) 1/(K-1) sum over l != k of D(p_l || p_k)

with D the loss in the spec, and no gradient into the teaching network. The student's loss is computed as for any other
teacher. This module has the peers themselves. A peer's class scores learn from those of the student (of its head for
this peer) and of the other peers. A peer's features learn from the student's alone, because the feature spaces of two
peers differ.
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

PREFIX = "peers."  # prefix of the names of peers' tensors in a checkpoint and in the training module


class Peer(nn.Module):
    """A trainable backbone of a teacher, initialized from the teacher's weights if it has any, else by ``seed``.

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
        """Compute the ``wanted`` features of uint8 images ``[B, 3, H, W]``, fp32, with gradient."""
        normalised = (images.float() - self.mean.float()) / self.std.float()
        with captured(self.model.target, self.modules_wanted) as outputs:
            features = self.model(normalised.to(next(self.model.parameters()).dtype), wanted)
        grid = images.shape[-2] // self.model.stride, images.shape[-1] // self.model.stride
        features.named |= {MODULE + name: as_features(output, grid) for name, output in outputs.items()}
        return features.map(lambda t: t.float())


def peer_parameters(module: nn.Module) -> dict[str, nn.Parameter]:
    """Return the trainable parameters of all peers by their names in ``module``; {} if it has no peers."""
    return {name: p for name, p in module.named_parameters() if name.startswith(PREFIX) and p.requires_grad}


def peer_buffers(module: nn.Module) -> dict[str, torch.Tensor]:
    """Return the persistent buffers of all peers by their names in ``module``."""
    peers = getattr(module, "peers", None)
    if peers is None:
        return {}
    kept = set(peers.state_dict())
    return {f"{PREFIX}{name}": buffer for name, buffer in peers.named_buffers() if name in kept}


def restore_peers(module: nn.Module, saved: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """Copy the peers' tensors of a checkpoint into ``module``; to be called before DeepSpeed partitions its parameters.

    Returns:
        The peers' parameters after that, fp32 on the CPU; a peer that the checkpoint lacks keeps its initial weights.
    """
    parameters = peer_parameters(module)
    with torch.no_grad():
        for name, tensor in {**parameters, **peer_buffers(module)}.items():
            if name in saved:
                tensor.copy_(saved[name])
    return {name: parameter.detach().float().cpu().clone() for name, parameter in parameters.items()}
