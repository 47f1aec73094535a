"""``radioplat.distill(spec)`` and ``radioplat.train(spec)``: what the command line, the jobs and users call."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

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
    """Distil a student from the spec's teachers; rerunning goes on from the newest checkpoint.

    Args:
        spec: a spec, a mapping, or a YAML file, which is only read.
        overrides: ``key=value``, applied to it.
        callbacks: called in this process, in order, with a ``StepEvent`` or ``CheckpointEvent``.
        progress: draw progress on stderr.
        say: called with each line for the user; default: print to stderr.

    Raises:
        RadioplatError: see ``radioplat.errors``; the results folder's ``status.json`` then ends with FAILURE.
        Stopped: SIGTERM came to this process and what there was is saved; unless handled, it exits with status 75.
    """
    spec = load_spec(spec, overrides)
    result = run_task(spec, "distill", spec.distill.results_dir, callbacks, progress, say or _to_stderr)
    if not spec.distill.then:
        return result
    return replace(result, then=_then(spec))


def train(
    spec: Spec | dict | str | Path,
    overrides: Sequence[str] = (),
    *,
    callbacks: Sequence[Callback] = (),
    progress: bool = False,
    say: Callable[[str], None] | None = None,
) -> RunResult:
    """Fine-tune ``model.backbone`` on labels; its checkpoint is a teacher or a student by path alone.

    Arguments and errors as :func:`distill`.
    """
    return run_task(load_spec(spec, overrides), "train", None, callbacks, progress, say or _to_stderr)


def _then(spec: Spec) -> dict[str, Any]:
    from radioplat.tasks.evaluate.evaluate import evaluate
    from radioplat.tasks.export.engine import gen_trt_engine
    from radioplat.tasks.export.export import export

    tasks: dict[str, Callable[[Spec], Any]] = {"evaluate": evaluate, "export": export, "gen_trt_engine": gen_trt_engine}
    return {name: tasks[name](spec) for name in spec.distill.then}


def _to_stderr(line: str) -> None:
    print(line, file=sys.stderr, flush=True)
