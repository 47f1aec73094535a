"""The rungs that need torch and timm, and DeepSpeed for its own: models and inputs in the device's memory."""

from __future__ import annotations

import contextlib
import dataclasses
import gc
import time
from collections.abc import Callable, Iterator
from typing import Any

import torch
import torch.distributed as dist
from torch import nn

from benchmarks.gpu import trace
from benchmarks.gpu.flops import mfu
from benchmarks.gpu.interleave import agreed, block, in_turn, speeds, wait
from benchmarks.gpu.loop import Loop
from benchmarks.gpu.setting import Setting

MEMORY_SHARE = 0.4  # of the device for a searched micro-batch: a rung holds our model, the loop's and the teachers
FIRST = 4  # images of the first try
LOOKED_AT = 3  # steps that the profiler records
OUT_OF_MEMORY = ("out of memory", "CUBLAS_STATUS_ALLOC_FAILED")
ENGINES = {"ddp": ("ddp", 0), "zero0": ("deepspeed", 0), "zero1": ("deepspeed", 1), "zero2": ("deepspeed", 2),
           "zero3": ("deepspeed", 3)}  # fmt: skip


def by_hand(setting: Setting, losses: bool = True, **more: Any) -> Loop:
    """Return the loop written by hand."""
    device = torch.device(setting.device, torch.cuda.current_device()) if setting.device == "cuda" else None
    teachers = setting.teachers if losses else ()
    return Loop(
        device or torch.device("cpu"), setting.student.arguments, setting.student.size, [t.width for t in teachers],
        [t.grid for t in teachers], setting.batch, setting.micro_batches, setting.precision == "bf16",
        setting.compiles, **more,
    )  # fmt: skip


def gflop_of(setting: Setting, heads: bool = True, teachers: bool = False) -> float:
    """Return GFLOP an image that a rung computes on the students' GPUs."""
    counted = setting.gflop
    return counted["student"] + (counted["heads"] if heads else 0) + teachers * sum(counted["teachers"].values())


def with_mfu(found: dict[str, Any], setting: Setting, gflop: float) -> dict[str, Any]:
    """Add GFLOP and MFU to each side of a rung."""
    for side in ("ours", "by_hand"):
        if side in found:
            rate = found[side]["images_per_s"]
            found[side]["mfu"] = mfu(gflop, rate, setting.peak, setting.gpus)
            found[side]["tflops_per_gpu"] = gflop * rate / setting.gpus / 1e3
    return {"gflop_per_image": gflop, **found}


def batch(setting: Setting) -> dict[str, Any]:
    """Double the micro-batch while a step of the loop, uncompiled, fits in :data:`MEMORY_SHARE` of the memory."""
    if setting.batch:
        return {"batch": setting.batch, "tried": {}, "why": "given"}
    limit = torch.cuda.get_device_properties(0).total_memory * MEMORY_SHARE if setting.device == "cuda" else None
    tried: dict[str, int | None] = {}
    size, best, why = FIRST, 0, "the largest that is tried"
    while size <= setting.most:
        used = _peak_of(dataclasses.replace(setting, batch=size, compiles=False, micro_batches=1))
        tried[str(size)] = None if used < 0 else used
        # All ranks go on or stop together.
        if agreed_least(used >= 0 and (limit is None or used <= limit), setting.device):
            best, size = size, 2 * size
            continue
        why = "a larger one ran out of memory" if used < 0 else f"a larger one takes over {MEMORY_SHARE:.0%} of memory"
        break
    if not best:
        raise RuntimeError(f"{FIRST} images do not fit into the memory: {tried}")
    return {"batch": best, "tried": tried, "why": why}


def agreed_least(value: bool, device: str) -> bool:
    """Return whether ``value`` is true on all ranks."""
    if not dist.is_initialized() or dist.get_world_size() == 1:
        return value
    flag = torch.tensor([float(value)], device=device)
    dist.all_reduce(flag, dist.ReduceOp.MIN)
    return bool(flag.item())


def _peak_of(setting: Setting) -> int:
    """Return the bytes that two steps take at most; -1 if the memory is not enough."""
    reset_peak(setting.device)
    try:
        loop = by_hand(setting, alone=True)  # a rank whose memory is not enough must not leave others in a collective
        for _ in range(2):
            loop.step()
        wait(setting.device)
        return peak_memory(setting.device) or 0
    except RuntimeError as error:
        if not ran_out(error):
            raise
        return -1
    finally:
        loop = None  # noqa: F841
        free(setting.device)


def ran_out(error: BaseException) -> bool:
    """Return whether the device's memory was not enough."""
    return isinstance(error, torch.cuda.OutOfMemoryError) or any(words in str(error) for words in OUT_OF_MEMORY)


def free(device: str) -> None:
    """Give unused memory back."""
    gc.collect()
    if device == "cuda":
        torch.cuda.empty_cache()


def reset_peak(device: str) -> None:
    """Begin to measure the most memory that is in use."""
    free(device)
    if device == "cuda":
        torch.cuda.reset_peak_memory_stats()


def peak_memory(device: str) -> int | None:
    """Return the most bytes in use since :func:`reset_peak`; None on a CPU."""
    return torch.cuda.max_memory_allocated() if device == "cuda" else None


def student(setting: Setting) -> dict[str, Any]:
    """Student alone: forward, backward and AdamW, with autocast, of radioplat's module and of timm's."""
    from benchmarks.gpu.models import objective_of, spec_of
    from radioplat.optim.optimizer import build_optimizer

    spec = spec_of(setting)
    _, objective = objective_of(spec, setting.device)
    backbone = objective.student.backbone
    images = [
        torch.randint(0, 256, (setting.batch, 3, *[setting.student.size] * 2), dtype=torch.uint8).to(setting.device)
        for _ in range(4)
    ]
    optimizer = build_optimizer(nn.ModuleDict({"student": nn.ModuleDict({"backbone": backbone})}), spec.train.optim)
    narrow = torch.autocast(setting.device, torch.bfloat16, enabled=setting.precision == "bf16")
    wanted = frozenset({"summary", "spatial"})
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    whole = (
        nn.parallel.DistributedDataParallel(_Alone(backbone, wanted)) if setting.gpus > 1 else _Alone(backbone, wanted)
    )

    def step() -> None:
        for place in range(setting.micro_batches):
            quiet = setting.gpus > 1 and place < setting.micro_batches - 1
            with whole.no_sync() if quiet else contextlib.nullcontext():
                with narrow:
                    loss = whole(images[place % len(images)])
                (loss / setting.micro_batches).backward()
        nn.utils.clip_grad_norm_(parameters, spec.train.clip_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    sides = {"ours": step, "by_hand": by_hand(setting, losses=False).step}
    return _measured(setting, sides, gflop_of(setting, heads=False))


class _Alone(nn.Module):
    """A backbone with a loss that needs no teacher."""

    def __init__(self, backbone: nn.Module, wanted: frozenset[str]) -> None:
        super().__init__()
        self.backbone, self.wanted = backbone, wanted

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return the loss, fp32, of uint8 images."""
        features = self.backbone((images.float() - 127.5) / 127.5, self.wanted)
        return features.summary.float().square().mean() + features.spatial.float().square().mean()


def losses(setting: Setting) -> dict[str, Any]:
    """Heads and losses on top, without an engine: radioplat's objective with autocast and AdamW."""
    from benchmarks.gpu.models import micro_batches, objective_of, spec_of
    from radioplat.optim.optimizer import build_optimizer

    spec = spec_of(setting)
    models, objective = objective_of(spec, setting.device)
    ready = micro_batches(spec, models, setting.device)
    optimizer = build_optimizer(objective, spec.train.optim)
    narrow = torch.autocast(setting.device, torch.bfloat16, enabled=setting.precision == "bf16")
    parameters = [p for group in optimizer.param_groups for p in group["params"]]
    whole = nn.parallel.DistributedDataParallel(objective) if setting.gpus > 1 else objective

    def step() -> None:
        for place in range(setting.micro_batches):
            quiet = setting.gpus > 1 and place < setting.micro_batches - 1
            with whole.no_sync() if quiet else contextlib.nullcontext():
                with narrow:
                    loss = whole(ready[place % len(ready)])["loss"]
                (loss / setting.micro_batches).backward()
        nn.utils.clip_grad_norm_(parameters, spec.train.clip_grad_norm)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)

    return _measured(setting, {"ours": step, "by_hand": by_hand(setting).step}, gflop_of(setting))


def engine(setting: Setting, name: str) -> dict[str, Any]:
    """The objective in an engine of radioplat, as the training loop calls it; with parts and a trace of its steps."""
    parts = trace.Parts(setting.device)
    with engine_step(setting, name, setting.compiles, parts) as step:
        found = _measured(setting, {"ours": step, "by_hand": by_hand(setting).step}, gflop_of(setting))
        parts.start()
        for _ in range(LOOKED_AT):
            step()
        found["parts_ms"] = parts.milliseconds(LOOKED_AT)
        parts.stop()
        seconds = found["ours"]["step_ms"] / 1e3
        return found | trace.look(step, LOOKED_AT, setting.micro_batches, setting.device, seconds)


@contextlib.contextmanager
def engine_step(setting: Setting, name: str, compiles: bool, parts: trace.Parts) -> Iterator[Callable[[], None]]:
    """Provide an optimizer step of the engine ``name`` (:data:`ENGINES`); close the engine at the end."""
    from benchmarks.gpu.models import micro_batches, objective_of, spec_of
    from radioplat.models.fp32_arithmetic import set_fp32_arithmetic
    from radioplat.spec.resolved.precision import fp32_arithmetic_of
    from radioplat.training.engine.registry import build_engine

    kind, stage = ENGINES[name]
    spec = spec_of(setting, kind, stage, compiles)
    set_fp32_arithmetic(fp32_arithmetic_of(spec.train), torch.device(setting.device))
    models, objective = objective_of(spec, setting.device)
    ready = micro_batches(spec, models, setting.device)
    run = build_engine(objective, spec, setting.micro_batches)

    def step() -> None:
        parts.mark("")
        for place in range(setting.micro_batches):
            loss = run(ready[place % len(ready)])["loss"]
            parts.mark("forward")
            run.backward(loss, last=place == setting.micro_batches - 1)
            parts.mark("backward")
            run.step()
            parts.mark("update")

    try:
        yield step
    finally:
        run.close()


def matrix(setting: Setting) -> dict[str, Any]:
    """Every engine and stage, compiled and not, at the micro-batch and half of it: ms of a step, and peak memory."""
    cells = [(name, compiles, size) for compiles in (True, False) for size in (setting.batch, setting.batch // 2)
             for name in ("ddp", "zero2", "zero1", "zero3", "zero0")]  # fmt: skip
    found: dict[str, Any] = {}
    begin = time.monotonic()
    for name, compiles, size in cells:
        label = f"{name}, {'compiled' if compiles else 'eager'}, batch {size}"
        # All ranks stop at the same cell.
        if agreed(time.monotonic() - begin, setting.device) > setting.seconds * 2:
            found[label] = {"unmeasured": "the time was used up"}
        elif compiles and not setting.compiles:
            found[label] = {"unmeasured": setting.why_eager}
        elif size:
            found[label] = _cell(dataclasses.replace(setting, batch=size), name, compiles)
    return {"cells": found}


def _cell(setting: Setting, name: str, compiles: bool) -> dict[str, Any]:
    reset_peak(setting.device)
    try:
        with engine_step(setting, name, compiles, trace.Parts(setting.device)) as step:
            for _ in range(2):
                step()
            once = agreed(block(step, 1, setting.device), setting.device)
            seconds = block(step, max(1, round(setting.seconds / 10 / max(once, 1e-6))), setting.device)
    except ModuleNotFoundError as error:
        return {"unmeasured": f"{error.name} is not installed"}
    except RuntimeError as error:
        if setting.gpus > 1 or not ran_out(error):  # the other ranks would wait in a collective
            raise
        return {"error": "out of memory"}
    finally:
        free(setting.device)
    rate = setting.images_a_step / seconds
    found = with_mfu({"ours": {"images_per_s": rate, "step_ms": 1e3 * seconds}}, setting, gflop_of(setting))["ours"]
    return {**found, "peak_memory_bytes": peak_memory(setting.device)}


def _measured(setting: Setting, sides: dict[str, Callable[[], object]], gflop: float) -> dict[str, Any]:
    reset_peak(setting.device)
    times = in_turn(sides, setting.seconds, setting.device)
    found = with_mfu(speeds(times, setting.images_a_step), setting, gflop)
    return {**found, "peak_memory_bytes_of_both": peak_memory(setting.device)}
