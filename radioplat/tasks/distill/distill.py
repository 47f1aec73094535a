"""``radioplat.distill(spec)`` and ``radioplat.train(spec)``."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from radioplat.common.terminal import note
from radioplat.launch.driver import RunResult, run_task
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.root import Spec
from radioplat.tracking.follow import Callback


def distill(
    spec: Spec | dict | str | Path,
    overrides: Sequence[str] = (),
    *,
    callbacks: Sequence[Callback] = (),
    progress: bool = False,
    say: Callable[[str], None] | None = None,
) -> RunResult:
    """Distil a student from the spec's teachers; a rerun continues from the newest checkpoint.

    Args:
        spec: a spec, a mapping, or a YAML file, which is not changed.
        overrides: ``key=value``, applied to it.
        callbacks: called in this process, in order, with a ``StepEvent`` or ``CheckpointEvent``.
        progress: draw progress on stderr.
        say: called with each message for the user; default: print to stderr.

    Raises:
        RadioplatError: see ``radioplat.errors``; the results folder's ``status.json`` then ends with FAILURE.
        Stopped: this process received SIGTERM, and a checkpoint is saved; unless handled, it exits with status 75.
    """
    spec = load_spec(spec, overrides)
    result = run_task(spec, "distill", spec.distill.results_dir, callbacks, progress, say or note)
    return replace(result, then=_then(spec)) if spec.distill.then else result


def train(
    spec: Spec | dict | str | Path,
    overrides: Sequence[str] = (),
    *,
    callbacks: Sequence[Callback] = (),
    progress: bool = False,
    say: Callable[[str], None] | None = None,
) -> RunResult:
    """Fine-tune ``model.backbone`` on labels; a spec can use the checkpoint's path as a teacher or a student.

    Arguments and errors as for :func:`distill`.
    """
    return run_task(load_spec(spec, overrides), "train", None, callbacks, progress, say or note)


def _then(spec: Spec) -> dict[str, Any]:
    from radioplat.tasks.evaluate.evaluate import evaluate
    from radioplat.tasks.export.engine import gen_trt_engine
    from radioplat.tasks.export.export import export

    tasks: dict[str, Callable[[Spec], Any]] = {"evaluate": evaluate, "export": export, "gen_trt_engine": gen_trt_engine}
    return {name: tasks[name](spec) for name in spec.distill.then}
