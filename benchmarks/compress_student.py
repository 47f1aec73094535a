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

from radioplat.chain.record import Entry
from radioplat.chain.run import CompressReport, compress
from radioplat.distill.run import distill
from radioplat.quickstart.defaults import SPEC, TEACHERS, ensure_inputs
from radioplat.terminal import note
from radioplat.track.results import write_atomic

STEPS, RETRAIN_STEPS = 200, 100  # of 16 images
STEPS_PER_EPOCH = 125  # as the quickstart's sources say
MACS = 0.5  # of the student's: the budget
AFTER = ["evaluate", "export"]


def run_student(seed: int, folder: Path) -> dict[str, Any]:
    """One seed below ``folder``; what an earlier call finished there is not done again.

    Returns:
        ``macs_kept``: share of the multiply-accumulates that the pruned student has; ``fidelity`` on held-out images of
        ``start``, ``control`` and ``pruned``: the mean over teachers and kinds; ``onnx_bytes`` by the same names.

    Raises:
        RadioplatError: a stage of it failed.
    """
    home = folder / f"seed_{seed}"
    done = home / "student.json"
    if done.exists():
        return json.loads(done.read_text())
    common = _overrides(seed, folder)
    base = distill(SPEC, [*common, f"results_dir={home / 'base'}", *_steps(STEPS)], say=_quiet)
    chains = {"control": ["retrain", *AFTER], "pruned": ["prune", "retrain", *AFTER]}
    reports = {name: _chain(stages, base.checkpoint, home / name, common) for name, stages in chains.items()}
    start, pruned = (_entry(reports["pruned"], stage) for stage in ("start", "prune"))
    assert start.outcome and start.outcome.macs and pruned.outcome and pruned.outcome.macs
    retrained = {name: _entry(report, "retrain") for name, report in reports.items()}
    exported = {name: _entry(report, "export").outcome for name, report in reports.items()}
    found = {
        "macs_kept": pruned.outcome.macs / start.outcome.macs,
        "fidelity": {"start": start.metrics["fidelity"]} | {n: e.metrics["fidelity"] for n, e in retrained.items()},
        "onnx_bytes": {name: outcome.bytes for name, outcome in exported.items() if outcome},
    }
    write_atomic(done, json.dumps(found, indent=1))
    return found


def make_inputs(folder: Path) -> None:
    """Corpora and the teachers' weights, before seeds go on side by side."""
    ensure_inputs([f"results_dir={folder / 'inputs'}"])


def _chain(stages: list[str], student: Path, results: Path, common: list[str]) -> CompressReport:
    asked = [
        f"results_dir={results}",
        f"compress.checkpoint={student}",
        f"compress.stages=[{','.join(stages)}]",
        f"prune.budget.macs={MACS}",
    ]
    return compress(SPEC, [*common, *asked, *_steps(RETRAIN_STEPS)], say=_quiet)


def _entry(report: CompressReport, stage: str) -> Entry:
    return next(entry for entry in report.entries if entry.name.endswith(stage))


def _steps(count: int) -> list[str]:
    return [f"train.max_steps={count}", f"train.num_epochs={-(-count // STEPS_PER_EPOCH)}"]


def _overrides(seed: int, folder: Path) -> list[str]:
    corpora, home = ensure_inputs([f"results_dir={folder / 'inputs'}"]), folder / "inputs"
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
    if "starts fresh" in line or "goes on" in line or "again" in line:
        note(line)
