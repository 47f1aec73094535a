"""The groups of workers of a run: one that trains all students, or with ``placement: spread`` one for each."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from radioplat.design.run import Run
from radioplat.tracking.attempts.attempts import Attempts
from radioplat.tracking.lease import Lease
from radioplat.training.accounting.accounts import session
from radioplat.training.accounting.folder_versions import prepare_run

FOLDER = "groups"  # in the folder of a run: a folder for each group


def groups_of(run: Run) -> list[Run]:
    """Return the run of each group; the run itself if one group trains all students.

    The run of a group has one student, and the samples, views and questions to teachers of all. Its folder has the
    group's attempts, logs and account of time.
    """
    if len(run.family) < 2 or not run.spread:
        return [run]
    groups = []
    for student in run.family:
        folder = run.folder / FOLDER / student.name
        own = dataclasses.replace(student, home=folder)
        parts: dict[str, Any] = {
            "folder": folder,
            "home": folder,
            "name": student.name,
            "spec": own.spec,
            "family": (own,),
        }
        groups.append(dataclasses.replace(run, **parts, group_of=run.folder))
    return groups


@contextlib.contextmanager
def opened(group: Run, say: Callable[[str], None]) -> Iterator[Run]:
    """Hold the lease of a group's folder during the block, and record its attempts and time; yield its run.

    Raises:
        LeaseTaken: another run writes the folder.
    """
    if group.group_of is None:
        yield group
        return
    group.folder.mkdir(parents=True, exist_ok=True)
    with Lease(group.folder, say) as lease:
        for line in prepare_run(group.folder):
            say(line)
        attempts = Attempts(group.folder)
        attempts.end("unknown", "its driver, or the whole cluster, was lost")
        with session(group.folder):
            try:
                yield dataclasses.replace(group, lease=lease.token)
            except BaseException as error:
                attempts.end("error", str(error) or type(error).__name__)
                raise
            attempts.end("done")


def run_side_by_side(work: Sequence[Callable[[], None]], stop: Callable[[], None]) -> None:
    """Run functions in a thread each, and wait for all of them.

    Args:
        stop: asks all of them to end soon; called if this thread is interrupted.

    Raises:
        BaseException: the error of the first function that has one, once all have ended.
    """
    errors: dict[int, BaseException] = {}

    def call(place: int) -> None:
        """Call one of them, and keep its error."""
        try:
            work[place]()
        except BaseException as error:
            errors[place] = error

    threads = [threading.Thread(target=call, args=(place,), daemon=True) for place in range(len(work))]
    for thread in threads:
        thread.start()
    try:
        for thread in threads:
            while thread.is_alive():
                thread.join(0.2)  # a signal's handler runs between two waits
    except BaseException:
        stop()
        raise
    if errors:
        raise errors[min(errors)]
