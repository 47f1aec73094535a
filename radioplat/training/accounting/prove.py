"""Prove from a run's files that it consumed every sample exactly once."""

from __future__ import annotations

import contextlib
from pathlib import Path

from radioplat.data.ledger.proof import Proof, prove
from radioplat.data.ledger.roll_up import Ordered
from radioplat.data.loading.run_data import RunData, differing_fields
from radioplat.design.run import Run
from radioplat.errors import DataError, RadioplatError
from radioplat.spec.loading.load import load_spec
from radioplat.spec.loading.students import FOLDER
from radioplat.spec.schema.dataset import DatasetConfig
from radioplat.tracking.attempts.goodput import Goodput
from radioplat.training.accounting.folder_versions import check_readable_run
from radioplat.training.checkpoints.checkpoint import newest
from radioplat.training.checkpoints.run_ledger import RunLedger


def prove_results(results: str | Path, full: bool = False) -> dict[Path, Proof]:
    """Prove each run in a results folder, or the one run whose task folder is given.

    Args:
        full: compare every row, also those that were compared when they were written.

    Returns:
        The proofs, by task folder.

    Raises:
        DataError: there is no ledger, or files that a proof needs are missing or belong to another sample order.
    """
    results = Path(results)
    candidates = [results] if (results / "ledger").is_dir() else sorted(results.glob("*/"))
    candidates += sorted(results.glob(f"{FOLDER}/*/*/"))  # of a run of several students, those of each
    folders = [folder for folder in candidates if any((folder / "ledger").glob("consumed-a*.parquet"))]
    if not folders:
        hint = "Give the results_dir of a run that has written a checkpoint, or its distill or train folder."
        raise DataError("no ledger here", where=str(results), hint=hint)
    return {folder: prove_run(folder, full=full) for folder in folders}


def prove_run(folder: Path, dataset: DatasetConfig | None = None, full: bool = False) -> Proof:
    """Prove the run in one task folder, up to its newest complete checkpoint.

    Args:
        dataset: dataset config of the run's spec; None to read it from ``experiment.yaml``.
        full: compare every row.

    Raises:
        DataError: there is no complete checkpoint, or the folder's copy of the index gives another sample order than
            the checkpoint's.
        NewerRecord: a newer version wrote a record of the run.
        RadioplatError: an older version did, and the record must be brought up first.
    """
    check_readable_run(folder)
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
        Ordered(data.order, state.order_hash, global_batch, state.order_from),
        state.reached,
        full=full,
        most_without_weight=dataset.max_bad_fraction,
    )


def verdict(run: Run, checkpoint: Path, totals: Goodput | None) -> tuple[str, bool]:
    """Prove a run that has ended; add lost and replayed samples to ``totals`` and write them to the run's folder.

    Args:
        checkpoint: the last one; rows up to it that are in no window yet are moved into windows.

    Returns:
        A line for the user, and True if each sample was learnt once.
    """
    ask = f"`radioplat ledger {run.folder}` shows it"
    try:
        RunLedger(run).roll_up(checkpoint, alone=True)
        proof = prove_run(run.folder, run.spec.dataset)
    except (RadioplatError, OSError) as error:
        return f"the ledger was not compared with the order: {error}", False
    if totals is not None:
        totals.lost, totals.replayed = proof.missing, proof.replayed
        with contextlib.suppress(OSError):
            totals.write(run.folder)
    if not proof.holds:
        wrong = f"{proof.missing} missing, {proof.repeated} repeated, {proof.misplaced} misplaced"
        return f"the ledger does not prove that each sample was used once: {wrong}; {ask}", False
    if not proof.learnt:
        return f"{proof.without_weight} of {proof.expected} samples were used without weight; {ask}", False
    if proof.unreadable:
        count = len(proof.unreadable)
        return f"each sample was used once, but {count} file(s) of the ledger are damaged or changed; {ask}", False
    return f"ledger: {proof.expected} samples, each used exactly once", True
