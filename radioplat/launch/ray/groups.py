"""The groups of workers of a run: one that trains all students, or with ``placement: spread`` one for each."""

from __future__ import annotations

import contextlib
import dataclasses
import threading
import time
from collections.abc import Callable, Iterator, Sequence

from radioplat.design.run import Run
from radioplat.errors import RadioplatError, Stopped, TrainingError
from radioplat.launch.storage_watch import StorageWatch
from radioplat.tracking.attempts.attempts import Attempts
from radioplat.tracking.status import StatusLog
from radioplat.training.accounting.accounts import session

_END_S = 60.0  # for checkpoints, after an interruption


def groups_of(run: Run) -> list[Run]:
    """Return the run of each group; the run itself if one group trains all students.

    The run of a group has one student, and the samples, views and questions to teachers of all. It is in the student's
    folder, which has its attempts, logs and account of time, as that of a student that is trained alone.
    """
    if len(run.family) < 2 or not run.spread:
        return [run]
    return [
        dataclasses.replace(
            run,
            folder=student.folder,
            home=student.folder,
            lease=student.lease,
            name=student.name,
            groups=len(run.family),
            spec=student.spec,
            family=(dataclasses.replace(student, home=student.folder),),
        )
        for student in run.family
    ]


@contextlib.contextmanager
def recorded(group: Run, say: Callable[[str], None]) -> Iterator[None]:
    """Record the attempts, the time and outages of the storage of a group in its student's folder."""
    attempts = Attempts(group.folder)
    attempts.end("unknown", "its driver, or the whole cluster, was lost")
    with (
        StatusLog(group.folder / "status.json") as status,
        session(group.folder),
        StorageWatch(group.folder, group.spec.dataset, status, say),
    ):
        try:
            yield
        except BaseException as error:
            attempts.end("error", str(error) or type(error).__name__)
            raise
        attempts.end("done")


def run_side_by_side(work: Sequence[Callable[[], None]], stop: Callable[[], None]) -> None:
    """Run functions in a thread each, and wait for all of them.

    Args:
        stop: asks all of them to end soon; called if this thread is interrupted.

    Raises:
        Stopped: one of them was asked to stop, once all have ended.
        TrainingError: likewise, with the problems of all functions, if several failed.
        BaseException: else the error of the first one.
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
        end = time.monotonic() + _END_S
        for thread in threads:  # they call Ray, which must not have been shut down
            thread.join(max(0.0, end - time.monotonic()))
        raise
    raised = [errors[place] for place in sorted(errors)]
    if stopped := next((error for error in raised if isinstance(error, Stopped)), None):
        raise stopped
    known = [error for error in raised if isinstance(error, RadioplatError)]
    if len(known) > 1:
        raise TrainingError(*dict.fromkeys(problem for error in known for problem in error.problems))
    for error in known or raised:
        raise error
