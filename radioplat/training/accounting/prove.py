"""Prove from a run's files that it consumed every sample exactly once, for ``radioplat ledger``."""

from __future__ import annotations

from pathlib import Path

from radioplat.data.ledger.proof import Proof, prove
from radioplat.data.loading.run_data import RunData, differing_fields
from radioplat.errors import DataError
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.dataset import DatasetConfig
from radioplat.training.checkpoints.checkpoint import newest


def prove_results(results: str | Path) -> dict[Path, Proof]:
    """Prove each run in a results folder, or the one run whose task folder is given.

    Returns:
        The proofs, by task folder.

    Raises:
        DataError: there is no ledger, or files that a proof needs are missing or belong to another sample order.
    """
    results = Path(results)
    candidates = [results] if (results / "ledger").is_dir() else sorted(results.glob("*/"))
    folders = [folder for folder in candidates if any((folder / "ledger").glob("consumed-a*.parquet"))]
    if not folders:
        hint = "Give the results_dir of a run that has written a checkpoint, or its distill or train folder."
        raise DataError("no ledger here", where=str(results), hint=hint)
    return {folder: prove_run(folder) for folder in folders}


def prove_run(folder: Path, dataset: DatasetConfig | None = None) -> Proof:
    """Prove the run in one task folder, up to its newest complete checkpoint.

    Args:
        dataset: dataset config of the run's spec; None to read it from ``experiment.yaml``.

    Raises:
        DataError: there is no complete checkpoint, or the folder's copy of the index gives another sample order than
            the checkpoint's.
    """
    checkpoint = newest(folder)
    if checkpoint is None:
        raise DataError("there is no whole checkpoint, so nothing led to one", where=str(folder))
    path, state = checkpoint
    dataset = dataset or load_spec(folder / "experiment.yaml").dataset
    data = RunData.load(folder / "data", dataset.train_dataset)
    global_batch = int(state.order_fields["global_batch"])
    differing = differing_fields(state.order_fields, data.order_fields(global_batch, dataset.max_pixels))
    if differing:
        raise DataError(
            f"the index and spec beside {path.name} make another order than the one it was trained on; "
            f"what differs: {', '.join(differing)}",
            where=str(folder),
            hint="A later start changed them: let it reach its first checkpoint, or undo the change and start again.",
        )
    return prove(
        folder / "ledger",
        data.order,
        global_batch,
        state.global_step,
        first_step=state.order_from,
        attempt=state.attempt,
        most_without_weight=dataset.max_bad_fraction,
    )
