"""One rank of a group of rungs: ``python -m benchmarks.gpu.rank RESULTS SETTING.json RUNG ...``.

RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT are set, as torchrun sets them. Rank 0 appends the result of
each rung to RESULTS as soon as it is there, one JSON object a line.
"""

from __future__ import annotations

import dataclasses
import importlib
import importlib.util
import json
import os
import sys
import time
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.gpu.setting import Setting, Unmeasured

Rung = Callable[[Setting], dict[str, Any]]
_TIMEOUT = timedelta(minutes=3)


def device(setting: Setting) -> dict[str, Any]:
    """The device's peaks, and the operations of the models."""
    from benchmarks.gpu import flops, peaks

    teachers = tuple(map(flops.described, setting.teachers))
    setting = dataclasses.replace(setting, teachers=teachers)
    models = {"student": setting.student.name, "teachers": [dataclasses.asdict(teacher) for teacher in teachers]}
    measured = peaks.measure(setting.device, setting.seconds)
    return {**peaks.describe(setting.device), **measured, "gflop": flops.count(setting), "models": models}


def _lazily(module: str, name: str, *arguments: Any) -> Rung:
    """Return a rung of a file that is imported when the rung runs: a missing package then fails this rung alone."""

    def run(setting: Setting) -> dict[str, Any]:
        """Import and run it."""
        return partial(getattr(importlib.import_module(f"benchmarks.gpu.{module}"), name))(setting, *arguments)

    return run


RUNGS: dict[str, Rung] = {
    "device": device,
    "batch": _lazily("bare", "batch"),
    "student": _lazily("bare", "student"),
    "losses": _lazily("bare", "losses"),
    "ddp": _lazily("bare", "engine", "ddp"),
    "zero2": _lazily("bare", "engine", "zero2"),
    "copies": _lazily("product", "rung", "copies"),
    "inline": _lazily("product", "rung", "inline"),
    "store": _lazily("product", "rung", "store"),
    "nixl": _lazily("product", "rung", "nixl"),
    "decoding": _lazily("product", "rung", "decoding"),
    "stalls": _lazily("product", "stalls"),
    "matrix": _lazily("bare", "matrix"),
    "decode": _lazily("inputs", "decode"),
    "latency": _lazily("latency", "latency"),
}


def main() -> None:
    """Run the rungs; an error of one is its result, and the next runs."""
    results, setting = Path(sys.argv[1]), Setting.read(Path(sys.argv[2]))
    _join(setting, bool({"zero2", "matrix"} & {*sys.argv[3:]}) or setting.engine != "ddp")
    for name in sys.argv[3:]:
        begin = time.monotonic()
        found = _fitting(RUNGS[name], setting)
        if name == "batch" and "batch" in found:
            setting = dataclasses.replace(setting, batch=found["batch"])
        if os.environ["RANK"] == "0":
            with results.open("a", encoding="utf-8") as file:
                file.write(json.dumps({name: {**found, "seconds": round(time.monotonic() - begin, 1)}}) + "\n")
        if "error" in found and setting.gpus > 1:
            sys.exit(1)  # the ranks no longer agree; the others wait in a collective until they are killed


def _join(setting: Setting, with_deepspeed: bool) -> None:
    """Choose the device of this rank, and join the process group; ``with_deepspeed`` as a run of radioplat does."""
    import torch
    import torch.distributed as dist

    backend = "nccl" if setting.device == "cuda" else "gloo"
    if setting.device == "cuda":
        torch.cuda.set_device(int(os.environ["LOCAL_RANK"]))
    if with_deepspeed and importlib.util.find_spec("deepspeed") is not None:
        from radioplat.training.loop import process_group

        process_group.join(backend, _TIMEOUT)  # else DeepSpeed would compile an extension on a CPU
    else:
        dist.init_process_group(backend, timeout=_TIMEOUT)


def _fitting(rung: Rung, setting: Setting) -> dict[str, Any]:
    """Run a rung, with half the micro-batch while the memory is not enough; only with one rank, as ranks must agree."""
    while True:
        found = _guarded(rung, setting)
        if not found.get("out_of_memory") or setting.gpus > 1 or setting.batch < 2:
            return {"batch": setting.batch, **found}
        setting = dataclasses.replace(setting, batch=setting.batch // 2)


def _guarded(rung: Rung, setting: Setting) -> dict[str, Any]:
    """Run a rung; a package that is missing makes it ``unmeasured``, any other error is an ``error``."""
    import torch

    from benchmarks.gpu.bare import free, ran_out

    try:
        return rung(setting)
    except ModuleNotFoundError as error:
        return {"unmeasured": f"{(error.name or str(error)).split('.')[0]} is not installed"}
    except Unmeasured as error:
        return {"unmeasured": str(error)}
    except Exception as error:  # whatever one rung raises, the others are measured
        import traceback

        traceback.print_exc()
        short = " ".join(str(error).split())[:500]
        return {"error": f"{type(error).__name__}: {short}", "out_of_memory": ran_out(error)}
    finally:
        torch._dynamo.reset()
        free(setting.device)


if __name__ == "__main__":
    main()
