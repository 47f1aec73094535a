"""W&B records of a task without training steps: figures, pictures, and the artifacts that it made and used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path

from radioplat.spec.schema.root import Spec
from radioplat.tracking.weights_and_biases.artifacts import Product
from radioplat.tracking.weights_and_biases.session import WandbRun, saved_id


def tell_task(
    spec: Spec,
    folder: Path,
    task: str,
    *,
    figures: Mapping[str, float] | None = None,
    pictures: Sequence[tuple[str, bytes]] = (),
    made: Product | None = None,
    joins: Path | None = None,
) -> None:
    """One W&B run of ``task``, or more of the run that trained the student; nothing where W&B is off.

    Args:
        folder: the task's results folder.
        made: its product; what that was made of becomes an input of the run.
        joins: the task folder whose run is gone on with, where it has one.
    """
    if not spec.wandb.enable:
        return
    known = saved_id(joins) if joins is not None else None
    begun = known or spec.wandb.id  # which has its config from the task that began it
    with WandbRun(spec.wandb, folder, None if begun else asdict(spec), resume_id=known, job_type=task) as run:
        if figures:
            run.log(0, {f"{task}/{name}": value for name, value in figures.items()})
        for name, png in pictures:
            run.picture(f"{task}/{name}", png)
        if made is not None:
            for path in made.made_of:
                run.used(Product(path, kind_of(path)))
            run.made(made)


def kind_of(path: Path) -> str:
    """The type of the artifact that a file or folder is."""
    return {".onnx": "onnx", ".engine": "engine"}.get(Path(path).suffix, "checkpoint")
