"""The quickstart's student, compressed: half of its multiply-accumulates taken away, and INT8.

A seed is one student, distilled from the quickstart's two teachers on its corpora. From its checkpoint two chains of
``radioplat compress`` go on: one prunes and retrains, the other (the control) only trains on, with the same number of
steps and the same schedule. Both are quantized, exported and built as engines. Fidelity is measured on the quickstart's
held-out photographs; nothing is chosen by it, and ranges are calibrated on training images.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from radioplat.common.terminal import note
from radioplat.quickstart.defaults import RADIO_VIT as SPEC
from radioplat.quickstart.defaults import TEACHERS, ensure_images
from radioplat.tasks.compress.chain_record import Entry
from radioplat.tasks.compress.compress import START, CompressReport, compress
from radioplat.tasks.compress.outcome import Outcome
from radioplat.tasks.distill.distill import distill
from radioplat.tracking.results import write_atomic

STEPS, RETRAIN_STEPS = 200, 100  # of 16 images
STEPS_PER_EPOCH = 125  # as the quickstart's sources say
MACS = 0.5  # of the student's: the budget
BACKEND = "tensorrt_rtx"  # whose log tells the kernels, on a machine without a GPU, too
INT8 = ["export", "ptq", "export", "engine"]


def run_student(seed: int, folder: Path) -> dict[str, Any]:
    """One seed below ``folder``; what an earlier call finished there is not done again.

    Returns:
        ``macs_kept``: share of the multiply-accumulates that the pruned student has; ``fidelity`` on held-out images of
        ``start``, ``control``, ``pruned``, ``control INT8``, ...: the mean over teachers and kinds; ``onnx_bytes`` by
        the same names; ``layers`` of the engines: see :func:`_covered`.

    Raises:
        RadioplatError: a stage of it failed.
    """
    home = folder / f"seed_{seed}"
    done = home / "student.json"
    if done.exists():
        return json.loads(done.read_text())
    common = _overrides(seed, folder)
    base = distill(SPEC, [*common, f"results_dir={home / 'base'}", *_steps(STEPS)], say=_quiet)
    chains = {"control": ["retrain", *INT8], "pruned": ["prune", "retrain", *INT8]}
    found: dict[str, Any] = {"fidelity": {}, "onnx_bytes": {}, "layers": {}}
    for name, stages in chains.items():
        report = _chain(stages, base.checkpoint, home / name, common)
        start, trained, rounded = (_only(report, stage) for stage in (START, "retrain", "ptq"))
        exact, quantized = (entry for entry in report.entries if entry.stage == "export")
        found["macs_kept"] = _outcome(trained).macs / _outcome(start).macs  # of the last chain, the pruned one
        found["fidelity"] |= {"start": start.metrics["fidelity"], name: trained.metrics["fidelity"]}
        found["fidelity"][f"{name} INT8"] = rounded.metrics["fidelity"]
        found["onnx_bytes"] |= {name: _outcome(exact).bytes, f"{name} INT8": _outcome(quantized).bytes}
        found["layers"][name] = _covered(_outcome(_only(report, "engine")))
    write_atomic(done, json.dumps(found, indent=1))
    return found


def make_inputs(folder: Path) -> None:
    """Corpora and the teachers' weights, before seeds go on side by side."""
    ensure_images([f"results_dir={folder / 'inputs'}"])


def _chain(stages: list[str], student: Path, results: Path, common: list[str]) -> CompressReport:
    asked = [
        f"results_dir={results}",
        f"compress.checkpoint={student}",
        f"compress.stages=[{','.join(stages)}]",
        f"prune.budget.macs={MACS}",
        f"gen_trt_engine.backend={BACKEND}",
    ]
    return compress(SPEC, [*common, *asked, *_steps(RETRAIN_STEPS)], say=_quiet)


def _only(report: CompressReport, stage: str) -> Entry:
    """The entry of a stage that the chain has once."""
    (found,) = (entry for entry in report.entries if entry.stage == stage)
    return found


def _outcome(entry: Entry) -> Outcome:
    assert entry.outcome is not None
    return entry.outcome


def _covered(engine: Outcome) -> dict[str, Any]:
    """Which convolutions and linear layers of an engine's ONNX file the builder's log shows in INT8 kernels alone.

    Where the builder does not tell, those that the file has quantized; ``told_by`` says which it is. ``unseen`` are
    quantized layers that no kernel names; they count for nothing.
    """
    coverage = engine.facts["coverage"]
    floats, lost, sure = coverage["not_quantized"], coverage["in_float_kernels"], coverage["taken_only_by"]
    return {
        "eligible": coverage["eligible"],
        "int8": (coverage["quantized"] if sure is None else sure).get("int8", 0),
        "float": [*floats, *(lost or ())],
        "unseen": coverage["unseen"] or [],
        "told_by": f"{engine.facts['backend']} {engine.facts['version']}" if sure is not None else "the file alone",
    }


def _steps(count: int) -> list[str]:
    return [f"train.max_steps={count}", f"train.num_epochs={-(-count // STEPS_PER_EPOCH)}"]


def _overrides(seed: int, folder: Path) -> list[str]:
    corpora, home = ensure_images([f"results_dir={folder / 'inputs'}"]), folder / "inputs"
    train = [corpora.photographs, corpora.labelled]
    return [
        *(f"dataset.train_dataset.tar_data_sources[{i}].root_dir={path}" for i, path in enumerate(train)),
        f"dataset.val_dataset.tar_data_sources[0].root_dir={corpora.held_out}",
        *(
            f"distill.teacher[{i}].pretrained_teacher_model_path={home / 'weights' / name}.safetensors"
            for i, name in enumerate(TEACHERS)
        ),
        f"feature_cache.dir={folder / 'answers'}",
        f"dataset.index_dir={folder / 'index'}",
        f"train.seed={seed}",
        # The order of samples is the same for all seeds: so teachers are asked about each image once.
        "cluster.mode=local",
        "train.num_gpus=1",
        "train.zero_stage=0",
        "train.precision=fp32",
        "dataset.batch_size=16",
        "train.checkpoint_interval=50",
        "train.checkpoint_interval_unit=step",
        "evaluate.max_images=300",
    ]


def _quiet(line: str) -> None:
    if "starts fresh" in line or "goes on" in line:
        note(line)
