"""Decide ``train.precision: auto`` from the GPUs of the workers."""

from __future__ import annotations

from radioplat.cluster.resources import Resources
from radioplat.design.automatic import Decision
from radioplat.spec.resolved.precision import precision_of
from radioplat.spec.schema.model import ModelTask
from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.train import Precision, TrainConfig

FIELD = "train.precision"


def decide_precision(spec: Spec, workers: Resources, earlier: TrainConfig | None) -> Decision | None:
    """Return the precision of all workers of a run, and the reason; None if the spec names it.

    The decision is made once for all ranks and all starts: workers of different precision would not train one student.

    Args:
        workers: of this machine or of the cluster, wherever this process runs.
        earlier: settings of an earlier start of the run, whose precision stays; the defaults if it wrote none, which
            are fp32; None for a new run.
    """
    if spec.train.precision is not Precision.auto:
        return None
    new = _new(spec, workers)
    if earlier is None:
        return new
    kept = precision_of(earlier)
    return Decision(FIELD, kept, "" if new.value is kept else "as this run began")


def _new(spec: Spec, workers: Resources) -> Decision:
    if not workers.gpus:
        return Decision(FIELD, Precision.fp32, "")  # 16 bits are emulated, or not faster, on most CPUs
    if spec.model.task is ModelTask.detection:
        return Decision(FIELD, Precision.fp32, "matching and box losses of detectors need it")
    old = [kind.name for kind in workers.kinds if kind.bf16 is False]
    if old:
        return Decision(FIELD, Precision.fp32, f"GPUs without bf16: {', '.join(old)}")
    names = ", ".join(kind.name for kind in workers.kinds)
    if names and all(kind.bf16 for kind in workers.kinds):
        return Decision(FIELD, Precision.bf16, f"{names}: these GPUs multiply bf16")
    shown = f", {names}" if names else ""
    return Decision(FIELD, Precision.bf16, f"GPUs of an unknown kind{shown}, taken for recent ones")
