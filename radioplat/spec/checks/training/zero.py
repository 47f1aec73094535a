"""Contradictions in how optimizer, gradients and weights are cut up between workers (ZeRO), and where they lie."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.schema.root import Spec


def zero_problems(spec: Spec) -> Iterator[Problem]:
    """Problems of ``train.zero_stage`` and ``train.offload`` that the spec alone shows.

    Every optimizer works at every stage, offloaded or not. What reads whole weights at each step does not at stage 3:
    the fields that ask for it say so themselves (``train.regularizer``, ``model.backbone.spectral_reparam``).
    """
    train = spec.train
    if train.offload and not train.zero_stage:
        hint = "Take train.zero_stage 1, 2 or 3; with one worker 1 cuts nothing up."
        yield Problem("stage 0 keeps no optimizer apart that could lie on the host", "train.offload", hint)
