"""``radioplat quickstart``: a run from installed packages to an engine, on real images and with real weights."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median

from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from radioplat.common import terminal
from radioplat.errors import RadioplatError
from radioplat.exporting.engines.build import EngineReport
from radioplat.quickstart.defaults import ROOT, SPEC, ensure_inputs
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.root import Spec
from radioplat.tasks.evaluate.evaluate import evaluate
from radioplat.tasks.evaluate.students import EvaluateResult
from radioplat.tasks.export.engine import gen_trt_engine
from radioplat.tasks.export.export import export
from radioplat.tracking.status import read_status

JOB = ROOT / "jobs" / "radio_distill.py"


def quickstart(overrides: list[str]) -> None:
    """Prepare the inputs, distil, evaluate, export, build an engine, and print the results.

    Args:
        overrides: of ``specs/quickstart.yaml``.

    Raises:
        RadioplatError: a stage failed; its files are kept, and the next call continues from there.
    """
    if not JOB.exists():
        raise RadioplatError(
            "the quickstart runs from a checkout", where=str(JOB), hint="Clone the repository and `make quickstart`."
        )
    begin = time.monotonic()
    spec = load_spec(SPEC, overrides)
    with _stage("1/5 real images into shards, weights into safetensors"):
        ensure_inputs(overrides)
    with _stage("2/5 distil: python jobs/radio_distill.py -e specs/quickstart.yaml"):
        _run_job(overrides)
    with _stage("3/5 evaluate before and after"):
        evaluated = _evaluate(spec)
    with _stage("4/5 export to ONNX"):
        onnx = export(spec)
    with _stage("5/5 write a TensorRT engine"):
        engine = gen_trt_engine(spec)
    _show(spec, evaluated, engine)
    terminal.say(f"onnx: {onnx.path} (within {onnx.max_abs_error:.0e} of torch)")
    reason = "" if engine.executed else f" here: {engine.execution['reason']}"
    made_for = ", ".join(engine.compute_capabilities) or "CPUs"
    terminal.say(f"engine: {engine.path}, made for {made_for}; {engine.state}{reason}")
    terminal.say(f"report: {evaluated.report}")
    terminal.say(f"everything took {time.monotonic() - begin:.0f} s")


def _run_job(overrides: list[str]) -> None:
    # One thread per process: two workers, two teachers and the decode tasks share the machine's cores.
    environment = {"OMP_NUM_THREADS": "1", **os.environ}
    command = [sys.executable, str(JOB), "-e", str(SPEC), *overrides]
    status = subprocess.run(command, env=environment, check=False).returncode
    if status:
        raise RadioplatError(
            f"the distillation ended with status {status}",
            where="jobs/radio_distill.py",
            hint="Its messages are above; run the quickstart again to go on from the last checkpoint.",
        )


def _evaluate(spec: Spec) -> EvaluateResult:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=None, transient=True) as bar:
        task = bar.add_task("batches", total=None)
        result = evaluate(spec, progress=lambda done, total: bar.update(task, completed=done, total=total))
    assert isinstance(result, EvaluateResult)  # the quickstart's student is no detector
    return result


def _show(spec: Spec, evaluated: EvaluateResult, engine: EngineReport) -> None:
    trained, untrained = evaluated.fidelity["student"], evaluated.fidelity["untrained student"]
    rows = [
        [f"fidelity to {teacher}, {kind}", f"{untrained[teacher][kind].centered:.3f}", f"{value.centered:.3f}", "1"]
        for teacher, kinds in trained.items()
        for kind, value in kinds.items()
    ]
    knn = evaluated.knn
    teachers = ", ".join(f"{name} {100 * knn[name].top1:.1f} %" for name in trained)
    rows.append(
        ["kNN accuracy", f"{100 * knn['untrained student'].top1:.1f} %", f"{100 * knn['student'].top1:.1f} %", teachers]
    )
    lines = read_status(Path(spec.results_dir) / "distill" / "status.json")
    speeds = [line["kpi"]["images_per_s"] for line in lines if line["kpi"].get("images_per_s")]
    rows.append(["training, images/s", "", f"{median(speeds):.0f}", ""])
    rows.append(["engine", "", engine.state, ""])
    terminal.show_table(
        "radioplat quickstart",
        ["on held-out images", "untrained student", "trained student", "teachers"],
        rows,
        note="fidelity: cosine to the teacher after its mean feature is taken away, so that a constant answer scores 0",
    )


@contextmanager
def _stage(name: str) -> Iterator[None]:
    begin = time.monotonic()
    terminal.say(f"[{name}]")
    yield
    terminal.say(f"    {time.monotonic() - begin:.1f} s")
