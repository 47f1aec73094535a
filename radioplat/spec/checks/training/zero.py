"""Checks of ZeRO, which shards optimizer, gradients and weights between workers, and of offloading."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.schema.root import Spec


def zero_problems(spec: Spec) -> Iterator[Problem]:
    """Yield problems of ``train.zero_stage`` and ``train.offload``.

    All optimizers support all stages and offloading. Settings that need whole weights in each step are checked with
    their own fields (``train.regularizer``, ``model.backbone.spectral_reparam``).
    """
    train = spec.train
    if train.offload and not train.zero_stage:
        hint = "Take train.zero_stage 1, 2 or 3; stage 1 with one worker shards nothing."
        yield Problem("offloading needs a ZeRO stage above 0", "train.offload", hint)
