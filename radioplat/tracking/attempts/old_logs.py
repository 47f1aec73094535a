"""Pack the log files of old attempts, so that the files of a run do not grow as ranks x attempts."""

from __future__ import annotations

import tarfile
from pathlib import Path

from radioplat.common.atomic_files import written_aside
from radioplat.tracking.attempts.logs import attempt_folder, attempts_in, begun, first_words, write_last_words

KEPT = 10  # newest attempts, whose files stay as they are
PACKED = "logs.tar.gz"


def pack_old_logs(task_folder: Path) -> None:
    """Pack each attempt older than the newest :data:`KEPT` into one file, beside why it ended.

    Interrupted at any point, the next call goes on. Only attempts in which workers ran count as newest.

    Raises:
        OSError: a file cannot be read or written; no log is lost.
    """
    newest = begun(task_folder)
    for attempt in attempts_in(task_folder):
        if attempt <= newest - KEPT:
            _pack(task_folder, attempt)


def _pack(task_folder: Path, attempt: int) -> None:
    folder = attempt_folder(task_folder, attempt)
    packed, words = folder / PACKED, first_words(task_folder, attempt)
    kept = {PACKED, *([f"last_words_{words.rank}.json"] if words else [])}
    if all(path.name in kept for path in folder.iterdir()):
        return
    if words is not None:  # of a rank that left only its stacks, nothing is written yet
        write_last_words(task_folder, attempt, words.rank, words.cause, words.detail)
    for path in folder.glob(f".{PACKED}.*"):  # of a call that was killed
        path.unlink()
    if not packed.exists():
        with written_aside(packed, sync=True) as aside, tarfile.open(aside, "w:gz", compresslevel=1) as tar:
            for path in sorted(folder.glob("[!.]*")):
                tar.add(path, path.name)
    with tarfile.open(packed) as tar:
        sizes = {member.name: member.size for member in tar}
    for name in sizes.keys() - kept:
        path = folder / name
        if path.exists() and path.stat().st_size == sizes[name]:  # else a process that is not gone yet wrote to it
            path.unlink()
