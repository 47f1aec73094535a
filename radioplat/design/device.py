"""What of a spec depends on the device that it meets."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.train import Precision


def device_problems(spec: Spec, gpus: bool) -> Iterator[Problem]:
    """What workers on a GPU, or on a CPU, cannot compute."""
    if spec.train.precision is Precision.fp16 and not gpus:
        hint = "Take bf16, which a CPU without bf16 units emulates, or fp32."
        yield Problem("fp16 trains on a GPU, and there is none here", "train.precision", hint)
