"""The pool of one teacher: its controller, whether it may be shared, and when it is ready.

A pool of a run ends with the run. A named one (``teachers.<name>.pool``) belongs to the cluster and serves any number
of runs; :mod:`radioplat.teachers.serving.named_pools` lists and stops those.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import json
import os
import time
from pathlib import Path

import ray

from radioplat.errors import PlacementError, SpecError
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.teachers.serving.pool_controller import PoolController
from radioplat.teachers.upsamplers.registry import upsampler_module

NAMESPACE = "radioplat"


def fingerprint(teacher: ResolvedTeacher, on_gpus: bool = False) -> dict[str, str]:
    """Return everything that a teacher's features depend on, by field: two runs may share a pool if it is equal."""
    from radioplat.teachers.adapters.registry import own_code_hash  # here: it imports torch

    service = teacher.service
    backbone = json.dumps(dataclasses.asdict(teacher.backbone), sort_keys=True, default=str)
    return {
        "weights": ", ".join(_file(member.weights) for member in teacher.members),
        "code": own_code_hash(teacher) or "built in",
        "backbone": hashlib.sha256(backbone.encode()).hexdigest()[:16],
        "input_size": str(teacher.input_size),
        "upsampler": _upsampler(teacher),
        "normalisation": f"{teacher.norm_mean} {teacher.norm_std}",
        "precision": service.precision.value,
        "max_batch": str(service.max_batch),
        "compile": str(service.compile),
        "logits": str("logits" in teacher.wanted),
        **({f"fp32 {key}": str(value) for key, value in dataclasses.asdict(teacher.fp32).items()} if on_gpus else {}),
    }


def _upsampler(teacher: ResolvedTeacher) -> str:
    if not (path := teacher.upsampler_checkpoint):
        return "none"
    from radioplat.common.hashing import file_hash

    module = upsampler_module()
    with contextlib.suppress(OSError):
        path = f"sha256 {file_hash(Path(path))[:16]}"
    # With random sizes the teacher enlarges its view itself: the same pixels, other features.
    return f"{module.KIND} {module.VERSION}, {path}, for {teacher.view_size} px"


def _file(path: str | None) -> str:
    path = path or ""
    with contextlib.suppress(OSError):
        state = os.stat(path)
        return f"{os.path.realpath(path)} ({state.st_size} bytes, {state.st_mtime_ns})"
    return path


def open_pool_controller(
    teacher: ResolvedTeacher, num_gpus: float, log: Path | None = None, rests: bool = False
) -> ray.actor.ActorHandle:
    """Return the controller of the pool of ``teacher``: the named one, started if necessary, or one for this run.

    Args:
        log: file for the output of the replicas, of a pool for this run; a named one has none.
        rests: a pool for this run begins without replicas.

    Raises:
        SpecError: the named pool serves another teacher, or the same with other settings.
    """
    options = {"num_cpus": 0, "max_concurrency": 8, "max_restarts": -1}
    name = teacher.service.pool
    if not name:
        return ray.remote(PoolController).options(**options).remote(teacher, num_gpus, {}, log, rests)
    ours = fingerprint(teacher, num_gpus > 0)
    controller = (
        ray.remote(PoolController)
        .options(**options, name=f"{name}/{teacher.name}", namespace=NAMESPACE, lifetime="detached", get_if_exists=True)
        .remote(teacher, num_gpus, ours)
    )
    theirs = ray.get(controller.fingerprint.remote())
    different = [
        f"{key}: {theirs.get(key)} there, {value} here" for key, value in ours.items() if theirs.get(key) != value
    ]
    if different:
        raise SpecError(
            f"pool {name} serves another {teacher.name} ({'; '.join(different)})",
            where=f"teachers.{teacher.name}.pool",
            hint="Name another pool, or stop that one: radioplat teachers stop.",
        )
    return controller


def await_pool_controller(controller: ray.actor.ActorHandle, name: str, timeout_s: float) -> None:
    """Wait until each replica has loaded its weights.

    Raises:
        PlacementError: the cluster had no free resources for them in time.
        WeightsError: the weights do not fit or cannot be read.
    """
    replicas = []
    try:
        begin = time.monotonic()
        replicas = ray.get(controller.replicas.remote(), timeout=timeout_s)
        ray.get([r.ready.remote() for r in replicas], timeout=max(0.0, timeout_s - (time.monotonic() - begin)))
    except ray.exceptions.GetTimeoutError:
        raise PlacementError(
            f"the {len(replicas)} replica(s) of teacher {name} did not all start within {timeout_s:g} s",
            where=f"teachers.{name}",
            hint="The cluster may be full: lower num_cpus, num_gpus or replicas, add nodes, or raise start_timeout_s.",
        ) from None
    except ray.exceptions.RayTaskError as error:
        raise error.cause if isinstance(error.cause, Exception) else error from None
