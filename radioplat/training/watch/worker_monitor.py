"""Monitoring of a worker while it trains: its log, its phases, the watchdog, and the reason of its end."""

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
    """Yield the phases that the training thread sets, and watch them; on a cluster, copy output to ``worker_R.log``."""
    rank, on_cluster = context.rank, context.on_cluster
    if on_cluster:
        tee_output(attempt_folder(run.folder, attempt) / f"worker_{rank}.log")
    phases = Phases()
    note_waits_in(run.data_dir)
    with StatusLog(run.folder / "status.json") as status:
        limit = run.spec.train.hang_timeout_s

        def say(line: str) -> None:
            """A warning in status.json."""
            status.write(line, verbosity="WARNING")

        def say_hang(line: str) -> None:
            """The last line of this process; on a cluster the group may start again."""
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
