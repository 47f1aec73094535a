"""Find the folder of a run's task from a results folder, and say whether the run is going on."""

from __future__ import annotations

from pathlib import Path

from radioplat.errors import DataError
from radioplat.spec.loading.students import FOLDER
from radioplat.tracking.lease import held_by
from radioplat.training.checkpoints.checkpoint import newest

_OF_A_RUN = ("accounts.jsonl", "ledger")


def run_folder(run: str | Path) -> Path:
    """Return the folder of the training in a results folder that ran last, or ``run`` itself if it is one.

    Raises:
        DataError: no run has started there.
    """
    run = Path(run)
    if (run / "status.json").is_file():
        return run
    # One student of several has no accounts of its own.
    result = [p.parent for p in run.glob("*/status.json") if any((p.parent / name).exists() for name in _OF_A_RUN)]
    if not result:
        hint = "Give the results_dir of a run, or its distill or train folder."
        raise DataError("no run has started here", where=str(run), hint=hint)
    return max(result, key=lambda folder: (folder / "status.json").stat().st_mtime)


def student_folder(run: str | Path) -> Path:
    """Return the folder of the only student's run in a results folder; see :func:`run_folder`.

    Raises:
        DataError: no run has started there, or it has several students.
    """
    folder = run_folder(run)
    names = sorted(path.parent.name for path in (folder.parent / FOLDER).glob("*/distill"))
    if names and not any(folder.glob("model_epoch_*")):
        hint = f"Name one: {folder.parent / FOLDER / names[0]}."
        raise DataError(f"this run has {len(names)} students: {', '.join(names)}", where=str(folder), hint=hint)
    return folder


def going_on_line(folder: Path) -> str:
    """Return a line for the user if a process writes the run in ``folder`` now; else an empty one.

    Raises:
        UnreadableCheckpoints: no checkpoint can be read.
    """
    holder, last = held_by(folder), newest(folder)
    if not holder or last is None:
        return ""
    return (
        f"{folder} is going on: {holder}. Steps up to {last[1].global_step}, that of its newest checkpoint "
        f"{last[0].name}, can be used now"
    )
