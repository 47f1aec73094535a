"""Overrides with which a run goes on from a checkpoint of another one, in a folder of its own."""

from __future__ import annotations

from pathlib import Path

from radioplat.spec.schema.root import Spec


def going_on(spec: Spec, checkpoint: Path | None, results_dir: Path) -> list[str]:
    """Return overrides of ``spec``, a run's with what it decided, for a run of the same steps in ``results_dir``.

    Args:
        checkpoint: where it begins; None: at the beginning.
    """
    return [
        f"train.global_batch_size={spec.global_batch_size}",  # it may follow from the number of workers
        f"train.resume_training_checkpoint_path={checkpoint or 'null'}",
        "train.checkpoint_dir=null",
        "distill.results_dir=null",
        "distill.then=[]",
        f"results_dir={results_dir}",
    ]
