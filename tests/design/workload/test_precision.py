"""`train.precision: auto` is decided by what the workers are, once for all of them, and kept."""

from __future__ import annotations

import pytest

from radioplat.cluster.gpu_kinds import kind_of
from radioplat.cluster.resources import Resources
from radioplat.design.workload.precision import decide_precision
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.train import Precision


def workers(gpus: int, *names: str) -> Resources:
    return Resources(8, gpus, tuple(kind_of(name) for name in names))


@pytest.mark.parametrize(
    ("there", "precision", "reason"),
    [
        (workers(0), Precision.fp32, ""),
        (workers(8, "H100"), Precision.bf16, "H100: these GPUs multiply bf16"),
        (workers(8, "A100", "L4"), Precision.bf16, "A100, L4: these GPUs multiply bf16"),
        (workers(8, "H100", "T4"), Precision.fp32, "GPUs without bf16: T4"),
        (workers(8), Precision.bf16, "GPUs of an unknown kind, taken for recent ones"),
        (workers(8, "H100", "X1"), Precision.bf16, "GPUs of an unknown kind, H100, X1, taken for recent ones"),
    ],
)
def test_by_the_workers(there, precision, reason):
    decision = decide_precision(load_spec(None), there, None)
    assert (decision.field, decision.value, decision.reason) == ("train.precision", precision, reason)


def test_a_detector_is_trained_in_fp32():
    decision = decide_precision(load_spec(None, ["model.task=detection"]), workers(8, "H100"), None)
    assert decision.value is Precision.fp32 and "detectors" in decision.reason


@pytest.mark.parametrize("given", ["fp32", "bf16", "fp16"])
def test_a_precision_that_is_named_stands(given):
    spec = load_spec(None, [f"train.precision={given}"])
    assert decide_precision(spec, workers(8, "H100"), load_spec(None).train) is None


@pytest.mark.parametrize(
    ("began", "kept"),
    [("fp32", Precision.fp32), ("auto", Precision.fp32), ("bf16", Precision.bf16), ("fp16", Precision.fp16)],
)
def test_a_run_keeps_what_it_began_with(began, kept):
    """`auto` in the spec of an earlier start: a version that had no such value, and computed in fp32."""
    earlier = load_spec(None, [f"train.precision={began}"]).train
    on_gpus, on_cpus = (decide_precision(load_spec(None), workers(n, "H100"), earlier) for n in (8, 0))
    assert on_gpus.value is on_cpus.value is kept
    assert on_gpus.reason == ("" if kept is Precision.bf16 else "as this run began")
    assert on_cpus.reason == ("" if kept is Precision.fp32 else "as this run began")
