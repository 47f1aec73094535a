"""One run of ``benchmarks.recipe``: distil, then evaluate at two sizes."""

from __future__ import annotations

import json
import resource
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from benchmarks.recipe_variants import OTHER, SIZE, VARIANTS, WITH_UNTRAINED, Figures, Job
from radioplat.common.atomic_files import written_aside
from radioplat.evaluation.measure.images import open_images
from radioplat.evaluation.models.open_models import TRAINED, UNTRAINED
from radioplat.quickstart.corpora import Corpora
from radioplat.quickstart.defaults import SPEC, TEACHERS, ensure_inputs
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.distill.distill import distill
from radioplat.tasks.evaluate.evaluate import evaluate
from radioplat.tasks.evaluate.students import EvaluateResult

STEPS_PER_EPOCH = 125  # as the quickstart's sources say


@dataclass(frozen=True)
class Inputs:
    """What all runs share.

    Attributes:
        corpora: the quickstart's shards.
        weights: folder of its teachers' weights.
        cache: folder of what teachers answered.
        index: folder of the shards' index.
    """

    corpora: Corpora
    weights: Path
    cache: Path
    index: Path


def make_inputs(job: Job) -> None:
    """Corpora, weights and the shards' index, before runs that go on side by side."""
    open_images(load_spec(SPEC, _overrides(job, _inputs(job))), {SIZE})


def _inputs(job: Job) -> Inputs:
    """Made where they are not there yet."""
    home = job.folder / "inputs"
    corpora = ensure_inputs([f"results_dir={home}"])
    return Inputs(corpora, home / "weights", job.folder / "cache", job.folder / "index")


def run(job: Job) -> Figures:
    """Distil and evaluate; one that was interrupted goes on from its last checkpoint.

    Raises:
        RadioplatError: a step of it failed.
    """
    cpu, wall = _cpu_seconds(), time.monotonic()
    overrides = _overrides(job, _inputs(job))
    distill(SPEC, overrides, say=lambda line: None)
    with_untrained = job.variant == WITH_UNTRAINED
    overrides += [f"evaluate.baseline={with_untrained}", "evaluate.pictures=0", "evaluate.cka_rows=0"]
    found = evaluate(SPEC, (*overrides, f"evaluate.resolutions=[{OTHER}]"))
    figures = Figures(
        _measures(found, TRAINED, SIZE) | _measures(found, f"{TRAINED} at {OTHER}", OTHER),
        _measures(found, UNTRAINED, SIZE) if with_untrained else {},
        {name: found.knn[name].top1 for name in found.fidelity[TRAINED]},
        _cpu_seconds() - cpu,
        time.monotonic() - wall,
    )
    with written_aside(job.home / "figures.json") as aside:
        aside.write_text(json.dumps(asdict(figures), indent=1))
    for checkpoint in (job.home / "distill").glob("model_epoch_*"):  # tens of megabytes each, and used up
        shutil.rmtree(checkpoint)
    return figures


def _overrides(job: Job, inputs: Inputs) -> list[str]:
    train = [inputs.corpora.photographs, inputs.corpora.labelled]
    return [
        f"results_dir={job.home}",
        *(f"dataset.train_dataset.tar_data_sources[{i}].root_dir={folder}" for i, folder in enumerate(train)),
        f"dataset.val_dataset.tar_data_sources[0].root_dir={inputs.corpora.held_out}",
        *(
            f"distill.teacher[{i}].pretrained_teacher_model_path={inputs.weights / name}.safetensors"
            for i, name in enumerate(TEACHERS)
        ),
        f"feature_cache.dir={inputs.cache}",
        f"dataset.index_dir={inputs.index}",
        f"train.seed={job.seed}",
        f"dataset.train_dataset.seed={job.seed}",
        f"train.max_steps={job.steps}",
        f"train.num_epochs={-(-job.steps // STEPS_PER_EPOCH)}",
        # How it is computed, not what: one process without Ray, whose micro-batch is the global batch. fp32 is what
        # CPUs without bf16 units are fast at.
        "cluster.mode=local",
        "train.num_gpus=1",
        "train.zero_stage=0",
        "train.precision=fp32",
        "dataset.batch_size=16",
        "train.checkpoint_interval=50",
        "train.checkpoint_interval_unit=step",
        *VARIANTS[job.variant],
    ]


def _measures(found: EvaluateResult, student: str, size: int) -> dict[str, float]:
    fidelity = {
        f"fidelity_{teacher}_{kind}_{size}": value.centered
        for teacher, kinds in found.fidelity[student].items()
        for kind, value in kinds.items()
    }
    return fidelity | {f"knn_{size}": found.knn[student].top1}


def _cpu_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime
