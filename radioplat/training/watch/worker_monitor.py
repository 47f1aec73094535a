"""Monitor a worker while it trains: its log, its phases, the watchdog, and the cause of its end."""

from __future__ import annotations

import contextlib
import sys
import traceback
from collections.abc import Iterator

from radioplat.data.storage.outage import note_waits_in
from radioplat.design.run import Run
from radioplat.tracking.attempts.logs import attempt_folder, tee_output, write_last_words
from radioplat.tracking.status import Status, StatusLog
from radioplat.training.watch.phases import Phases
from radioplat.training.watch.rank_context import RankContext
from radioplat.training.watch.watchdog import Watchdog


@contextlib.contextmanager
def monitored_worker(run: Run, attempt: int, context: RankContext) -> Iterator[Phases]:
    """Yield the phases that the training thread sets, and monitor them; on a cluster, copy output to ``worker_R.log``.

    An exception that leaves the block is recorded as the cause of the worker's end.
    """
    rank, on_cluster = context.rank, context.on_cluster
    if on_cluster:
        tee_output(attempt_folder(run.folder, attempt) / f"worker_{rank}.log")
    phases = Phases()
    note_waits_in(run.data_dir)
    with StatusLog(run.folder / "status.json") as status:
        limit = run.spec.train.hang_timeout_s

        def say(line: str) -> None:
            """Write a warning to status.json."""
            status.write(line, verbosity="WARNING")

        def say_hang(line: str) -> None:
            """Write the error before this process ends; on a cluster the status stays RUNNING."""
            status.write(line, Status.RUNNING if on_cluster else Status.FAILURE, verbosity="ERROR")
            print(line, file=sys.stderr, flush=True)

        dog = Watchdog(phases, run.folder, attempt, rank, context.world_size, limit, say, say_hang)
        try:
            yield phases
        except BaseException as error:
            cause = getattr(error, "restart_cause", None) or getattr(error, "cause", None)
            detail = " ".join(str(error).split()) or type(error).__name__
            cause = cause if isinstance(cause, str) else "error"
            write_last_words(run.folder, attempt, rank, cause, f"{type(error).__name__}: {detail}")
            if on_cluster:
                traceback.print_exc()
            raise
        finally:
            dog.close()
            note_waits_in(None)
