"""W&B records of a task without training steps: metrics, pictures, and the artifacts that it created and used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from pathlib import Path

from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.train import Tracker
from radioplat.tracking.weights_and_biases.artifacts import Product
from radioplat.tracking.weights_and_biases.session import WandbRun, saved_id


def log_task_to_wandb(
    spec: Spec,
    folder: Path,
    task: str,
    *,
    figures: Mapping[str, float] | None = None,
    pictures: Sequence[tuple[str, bytes]] = (),
    made: Product | None = None,
    joins: Path | None = None,
) -> None:
    """Log ``task`` as a W&B run, or as part of the run that trained the student; do nothing if W&B is off.

    Args:
        spec: the spec.
        folder: the task's results folder.
        task: its name, the prefix of figures and pictures.
        figures: metrics by name.
        pictures: PNG bytes by name.
        made: its product, whose ``made_of`` become inputs of the run.
        joins: the task folder whose run is continued, if it has one.
    """
    if not spec.tracked_by(Tracker.wandb):
        return
    known = saved_id(joins) if joins is not None else None
    begun = known or spec.wandb.id  # such a run has the config of the task that started it
    config = replace(spec.wandb, enable=True)
    with WandbRun(config, folder, None if begun else asdict(spec), resume_id=known, job_type=task) as run:
        if figures:
            run.log(0, {f"{task}/{name}": value for name, value in figures.items()})
        for name, png in pictures:
            run.picture(f"{task}/{name}", png)
        if made is not None:
            for path in made.made_of:
                run.used(Product(path, kind_of(path)))
            run.made(made)


def kind_of(path: Path) -> str:
    """Return the artifact type of a file or folder."""
    return {".onnx": "onnx", ".engine": "engine"}.get(Path(path).suffix, "checkpoint")
