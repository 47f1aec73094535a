"""Contradictions in what keeps a run steady: loss spikes and hangs."""

from __future__ import annotations

import math
from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.root import Spec


def steady_problems(spec: Spec) -> Iterator[Problem]:
    """Problems of ``train.spike`` and ``train.hang_timeout_s``."""
    train, where = spec.train, "train.spike"
    if not 0 < train.hang_timeout_s < math.inf:
        hint = "600 finds a hang in ten minutes."
        yield Problem(f"must be a positive number of seconds, not {train.hang_timeout_s}", "train.hang_timeout_s", hint)
    if not 1 < train.spike.factor < math.inf:
        yield Problem(f"must be above 1, not {train.spike.factor}", f"{where}.factor")
    if not 2 <= train.spike.window <= 1000:
        yield Problem(f"2 to 1000 steps are needed for a median, not {train.spike.window}", f"{where}.window")
    if train.spike.max_rollbacks < 0:
        yield Problem(f"must not be negative, not {train.spike.max_rollbacks}", f"{where}.max_rollbacks")
