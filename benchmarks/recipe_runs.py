"""The variants of ``benchmarks.recipe``, and one run of one of them: distil, then evaluate at two sizes."""

from __future__ import annotations

import json
import resource
import shutil
import time
from dataclasses import asdict, dataclass
from pathlib import Path

from radioplat.aside import written_aside
from radioplat.distill.run import distill
from radioplat.evaluate.images import open_images
from radioplat.evaluate.run import TRAINED, UNTRAINED, EvaluateResult, evaluate
from radioplat.quickstart.corpora import Corpora
from radioplat.quickstart.defaults import SPEC, TEACHERS
from radioplat.spec.load import load_spec

SIZE, OTHER = 96, 192  # pixels: of training; twice as many, which no student has seen
STEPS_PER_EPOCH = 125  # as the quickstart's sources say

def _losses(maps: str, summary: str, targets: str) -> list[str]:
    """Overrides of the quickstart's spec: as there, lite0 teaches a summary and a map, lite2 a map."""
    return [
        f"distill.target_norm.type={targets}",
        *(f"distill.teacher[{i}].{field}" for i in (0, 1) for field in ("mode=spatial", f"loss_type={maps}")),
        f"distill.teacher[0].extra_losses=[{{type: {summary}, kind: summary}}]",
    ]


# `angle` looks at raw summaries, whatever the targets.
_RADIO = _losses("MSE", "angle", "phi_s")

VARIANTS: dict[str, list[str]] = {
    "mse": _losses("MSE", "MSE", "none"),
    "phi_s": _losses("MSE", "MSE", "phi_s"),
    "balanced": _losses("BALANCED", "BALANCED", "none"),
    "angle": _losses("MSE", "angle", "none"),
    "radio": _RADIO,
    # A table of the training grid's own size, as a plain ViT has: cells that training never tells apart would be noise
    # at the larger size.
    "radio_without_cpe": [*_RADIO, "model.backbone.cpe=false", f"model.backbone.cpe_max_size={SIZE}"],
    "radio_without_registers": [*_RADIO, "model.backbone.cpe_num_registers=0"],
}
WITH_UNTRAINED = "mse"  # its evaluations have the untrained student beside it; that of the four after it is the same


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


@dataclass(frozen=True)
class Job:
    """One student: a variant and a seed, trained for ``steps`` steps below ``folder``."""

    variant: str
    seed: int
    steps: int
    folder: Path

    @property
    def home(self) -> Path:
        """Its results folder. Another number of steps is another schedule, so another folder."""
        return self.folder / f"{self.steps}_steps" / self.variant / f"seed_{self.seed}"


@dataclass(frozen=True)
class Figures:
    """What one run measured on held-out images.

    Attributes:
        trained, untrained: measure -> value; measures are ``fidelity_<teacher>_<kind>_<size>`` and ``knn_<size>``. Of
            the untrained student there is nothing at the other size, and only :data:`WITH_UNTRAINED` has it.
        teachers: ``knn`` of each teacher, by name.
        cpu_s: processor seconds that it took, of all threads; a run that went on counts what it did last.
        wall_s: seconds.
    """

    trained: dict[str, float]
    untrained: dict[str, float]
    teachers: dict[str, float]
    cpu_s: float
    wall_s: float


def finished(job: Job) -> Figures | None:
    """What the run measured, if an earlier call came to its end."""
    try:
        return Figures(**json.loads((job.home / "figures.json").read_text()))
    except FileNotFoundError:
        return None


def run(job: Job, inputs: Inputs) -> Figures:
    """Distil and evaluate; one that was interrupted goes on from its last checkpoint.

    Raises:
        RadioplatError: a step of it failed.
    """
    cpu, wall = _cpu_seconds(), time.monotonic()
    overrides = _overrides(job, inputs)
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


def make_index(job: Job, inputs: Inputs) -> None:
    """Scan the shards once, before runs that go on side by side."""
    open_images(load_spec(SPEC, _overrides(job, inputs)), {SIZE})


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
