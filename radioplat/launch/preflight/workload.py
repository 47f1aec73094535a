"""Preflight steps on what a run on GPUs computes and sends for an image, and warnings of slow settings."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from radioplat.cluster.resources import demand_of, teacher_gpus
from radioplat.common import terminal
from radioplat.design.memory import (
    AHEAD,
    parameter_bytes,
)
from radioplat.design.student import build_on_meta
from radioplat.design.workload.pace import UTILISATION, Pace, pace_of
from radioplat.design.workload.wire import feature_bytes, pixel_bytes
from radioplat.design.workload.work import Work, is_inline
from radioplat.launch.preflight.advice import convolves
from radioplat.launch.preflight.preflight import Preflight
from radioplat.launch.preflight.workers import work_on_gpus
from radioplat.spec.resolved.precision import precision_of, uses_tf32
from radioplat.spec.resolved.reduction import is_exact
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.spec.resolved.zero import zero_stage
from radioplat.spec.schema.model import ModelTask
from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.train import EngineName, Precision, Reduction
from radioplat.training.feed.feeder import prefetch_depth

# DeepSpeed's Python took 23 ms for a micro-batch of a ViT-L with ZeRO-2, measured on a CPU; a GPU that is faster waits.
LEAST_BUSY_S = 0.02


def arithmetic(preflight: Preflight) -> None:
    """Record number formats and engine of a run on GPUs; warn of those that are slow there."""
    spec, resources = preflight.spec, preflight.resources
    if preflight.models is None or resources is None or not resources.gpus:
        return
    train = spec.train
    rest = "as TF32" if uses_tf32(train) else "in full"
    engine = "ddp" if train.engine is EngineName.ddp else f"DeepSpeed, ZeRO stage {zero_stage(train)}"
    cudnn = "the same algorithms always" if train.cudnn.deterministic else "the fastest algorithms"
    preflight.facts["arithmetic"] = (
        f"{precision_of(train).value} by {engine}; what is fp32 is computed {rest}; "
        f"convolutions by {cudnn} (train.cudnn)"
    )
    preflight.warnings += _slow_arithmetic(preflight)


def _slow_arithmetic(preflight: Preflight) -> Iterator[str]:
    spec, models, resources = preflight.spec, preflight.models, preflight.resources
    assert models is not None and resources is not None
    able = all(kind.bf16 is not False for kind in resources.kinds)
    if able and precision_of(spec.train) is Precision.fp32 and spec.model.task is not ModelTask.detection:
        half = "at half the rate of bf16 or less" if uses_tf32(spec.train) else "at a tenth of the rate of bf16 or less"
        yield (
            f"train.precision is fp32: GPUs multiply it {half}, and activations take twice the memory; new runs get "
            "bf16 with auto"
        )
    if not uses_tf32(spec.train):
        yield "train.tf32 is not true: products that stay fp32, of losses and transforms, do not use the tensor cores"
    if spec.train.cudnn.deterministic and convolves(build_on_meta(models.architecture).backbone):
        yield "train.cudnn.deterministic is true: the student's convolutions do not get cuDNN's fastest algorithms"


def sums(preflight: Preflight) -> None:
    """Record the cost of ``train.reduction: exact``."""
    spec, models = preflight.spec, preflight.models
    train, fast = spec.train, replace(spec.train, reduction=Reduction.fast)
    if not is_exact(train) or models is None:
        return
    count, world = models.student_parameters, spec.worker_bounds[0]
    more = parameter_bytes(train, world).of(count) - parameter_bytes(fast, world).of(count)
    batch = "" if train.global_batch_size else (
        "; train.global_batch_size is not set and follows from num_gpus and num_nodes: set it before you change them"
    )  # fmt: skip
    preflight.facts["sums"] = (
        "exact: weights are the same, bit for bit, at any number of workers of the same hardware, "
        f"{train.threads} thread(s) each on CPUs (train.threads); {terminal.size(more)} more memory a worker, and "
        f"workers exchange {terminal.size(8 * count)} in a step instead of {terminal.size(4 * count)}, after its last "
        f"backward pass{batch}"
    )


def gpus(preflight: Preflight) -> None:
    """Record the GPUs that the run takes, if it is for several or a teacher has a share of one."""
    spec, models, resources = preflight.spec, preflight.models, preflight.resources
    if models is None or resources is None:
        return
    outer = [teacher for teacher in models.teachers if not teacher.inside]
    shared = any(teacher.service.num_gpus for teacher in outer)
    if resources.gpus or spec.worker_bounds[1] > 1 or shared:
        needed, parts = gpus_taken(spec, outer, preflight.on_ray)
        there = f"of {resources.gpus:g}" if resources.gpus else "on a cluster that has some"
        preflight.facts["GPUs"] = f"{needed:g} {there}: {parts}"


def gpus_taken(spec: Spec, teachers: list[ResolvedTeacher], on_ray: bool) -> tuple[float, str]:
    """Return the GPUs that a run takes where there are some, and the same as a sum in words.

    Args:
        teachers: those with frozen weights.
    """
    fewest, most = spec.worker_bounds
    inside = [teacher for teacher in teachers if is_inline(teacher, on_ray)]
    outside = [teacher for teacher in teachers if teacher not in inside]
    within = f" with {', '.join(teacher.name for teacher in inside)} inline" if inside else ""
    parts = [f"{fewest if fewest == most else f'{fewest} to {most}'} worker(s){within}"]
    for teacher in outside:
        least, share = teacher.service.bounds[0], teacher_gpus(teacher.service.num_gpus, gpus=True)
        parts.append(f"{teacher.name} {least} x {share:g}")
    return demand_of(spec, outside, gpus=True).gpus, " + ".join(parts)


def operations(preflight: Preflight) -> None:
    """Record the operations for one image."""
    if (work := work_on_gpus(preflight)) is None:
        return
    parts = [f"student {_giga(work.student)} forward and backward"]
    if work.recomputed:
        parts.append(f"{_giga(work.recomputed)} recomputed (train.grad_checkpointing)")
    parts += [f"{name} {_giga(flops)} inside the student's step" for name, flops in work.inner.items()]
    parts += [f"{name} {_giga(flops)} inline" for name, flops in work.inline.items()]
    parts += [f"{name} {_giga(flops)}" for name, flops in work.outer.items()]
    preflight.facts["GFLOP an image"] = ", ".join(parts)


def pace(preflight: Preflight) -> None:
    """Record how busy the workers' GPUs are, at which rate, and the replicas that teachers need; warn of too few."""
    work, models, resources = work_on_gpus(preflight), preflight.models, preflight.resources
    if work is None or models is None or resources is None:
        return
    spec = preflight.spec
    balance = pace_of(work, spec.worker_bounds[1], models.teachers)
    peaks = [kind.peak for kind in resources.kinds]
    peak = min((peak for peak in peaks if peak), default=None) if None not in peaks else None
    if precision_of(spec.train) is Precision.fp32:
        peak = None  # those known are of bf16
    preflight.facts["time of the workers' GPUs, at best"] = _shares(work, balance)
    if peak is not None:
        rate = balance.workers * balance.busy * UTILISATION * peak / work.of_worker
        preflight.facts["rate, at best"] = (
            f"{rate:,.0f} images/s in all if GPUs reach {UTILISATION:.0%} of their peak, an MFU of "
            f"{UTILISATION * balance.student:.0%} for the student"
        )
        busy = spec.dataset.batch_size * work.of_worker / (UTILISATION * peak)
        if busy < LEAST_BUSY_S and spec.train.engine is EngineName.deepspeed:
            preflight.warnings.append(
                f"dataset.batch_size is {spec.dataset.batch_size}: a GPU computes such a micro-batch in about "
                f"{busy * 1e3:.2g} ms, less than DeepSpeed's Python needs to start it (about "
                f"{LEAST_BUSY_S * 1e3:g} ms); raise it if memory allows"
            )
    if balance.needed:
        preflight.facts["replicas"] = ", ".join(
            f"{name} {balance.running[name]} ({needed:.2g} keep up with {balance.workers} worker(s))"
            for name, needed in balance.needed.items()
        )
    if balance.slow:
        few = ", ".join(f"teachers.{name}.replicas is {balance.running[name]}" for name in balance.slow)
        preflight.warnings.append(
            f"{few}, too few to keep up: the workers wait {1 - balance.busy:.0%} of the time; raise the number (auto "
            "takes what fits), take fewer workers, or placement: inline"
        )


def _shares(work: Work, balance: Pace) -> str:
    computing = {
        "the student": work.student,
        "its recomputed forward pass": work.recomputed,
        "teachers inside its step": sum(work.inner.values()),
        "inline teachers": sum(work.inline.values()),
    }
    shares = [f"{name} {balance.busy * flops / work.of_worker:.0%}" for name, flops in computing.items() if flops]
    return ", ".join([*shares, *([f"waiting for teachers {1 - balance.busy:.0%}"] if balance.slow else [])])


def sent(preflight: Preflight) -> None:
    """Record the bytes of an image that travel to and from each teacher in actors, and the micro-batches ahead."""
    work, models = work_on_gpus(preflight), preflight.models
    if work is None or models is None:
        return
    lines = []
    for teacher in models.teachers:
        if teacher.name in work.outer:
            there = pixel_bytes(teacher)
            back = feature_bytes(teacher, models.infos[teacher.name], models.grids[teacher.name])
            lines.append(f"{teacher.name} {there / 1e3:,.0f} kB of pixels and {back / 1e3:,.0f} kB of features")
    if lines:
        preflight.facts["sent per image"] = ", ".join(lines)
    if work.outer or work.inline:
        depth = prefetch_depth(preflight.spec)
        preflight.facts["queue"] = (
            f"teachers work up to {depth} micro-batch(es) ahead (dataset.prefetch_batches) of {AHEAD} that wait on the "
            "worker's GPU"
        )


def _giga(flops: float) -> str:
    return f"{flops / 1e9:,.0f}" if flops >= 1e10 else f"{flops / 1e9:.2g}"
