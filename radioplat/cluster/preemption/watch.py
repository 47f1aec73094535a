"""Poll for the preemption notice of this machine and act on it."""

from __future__ import annotations

import time
from collections.abc import Callable

from radioplat.cluster.preemption.drain import drain
from radioplat.cluster.preemption.metadata import CLOUDS, Notice, find_cloud
from radioplat.cluster.preemption.processes import Process
from radioplat.errors import PlacementError, RadioplatError

EVERY_S = 5.0  # what AWS recommends
_AGAIN_S = 2.0


def watch(
    cloud: str, act: Callable[[Notice], None], say: Callable[[str], None], every_s: float = EVERY_S
) -> Notice | None:
    """Poll the metadata service until there is a notice, and act on it.

    Errors of the service are ignored, so that a network failure does not end the watch. A failed action is retried
    until the machine's deadline.

    Args:
        cloud: ``aws``, ``gcp``, or ``auto`` for the one that answers.
        act: called with the notice.
        say: called with each line for the user.
        every_s: seconds between requests.

    Returns:
        The notice; None if the deadline passed before the action succeeded.

    Raises:
        PlacementError: ``auto``, and no cloud's service answers here.
    """
    name = find_cloud() if cloud == "auto" else cloud
    if name is None:
        raise PlacementError(
            "no cloud's metadata service answers on this machine",
            where="--cloud",
            hint=f"Name the cloud to watch it anyway: {', '.join(CLOUDS)}.",
        )
    say(f"watching for a preemption notice of {name}, every {every_s:g} s")
    service, silent = CLOUDS[name](), False
    while True:
        try:
            notice = service.notice()
            if silent:
                say("the metadata service answers again")
            silent = False
        except OSError as error:
            if not silent:
                say(f"the metadata service does not answer: {error}; retrying")
            notice, silent = None, True
        if notice is not None:
            say(f"{notice.detail}, in {notice.seconds:.0f} s")
            return notice if _done(notice, act, say) else None
        time.sleep(every_s)


def drain_this_node(notice: Notice) -> None:
    """Action: drain the Ray node on this machine."""
    drain(notice.seconds, notice.detail)


def end_process(pid: int) -> Callable[[Notice], None]:
    """Return an action that sends SIGTERM to a run on this machine, which then saves and exits with status 75.

    Raises:
        PlacementError: there is no such process, or it cannot be that of a run.
    """
    try:
        process = Process(pid)  # now: at the notice, days later, another process may have its number
    except ProcessLookupError:
        raise PlacementError(f"there is no process {pid}", where="--process") from None
    return lambda notice: process.terminate()


def _done(notice: Notice, act: Callable[[Notice], None], say: Callable[[str], None]) -> bool:
    while True:
        try:
            act(notice)
            say("done")
            return True
        except RadioplatError as error:
            say(str(error))
        if notice.seconds <= 0:
            return False
        time.sleep(min(_AGAIN_S, notice.seconds))
