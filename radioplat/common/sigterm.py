"""SIGTERM: save, and leave with exit status 75, which says that the same command goes on from there.

What a scheduler sends before it takes a machine away. The first one is heeded: before the first step, where nothing is
to be saved, the command leaves at once; later its workers are asked to pause, as for a node that is to go. The second
one ends the process as any other. Where no signal comes, in a trial of a sweep, :func:`leave` says the same.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

from radioplat.errors import Stopped

_passed_on: list[Callable[[], None]] = []  # of this process, innermost last; signals are the process's, too
_asked = False


def stop_requested() -> bool:
    """Whether the run within :func:`handling_sigterm` was told to stop."""
    return _asked


@contextlib.contextmanager
def handling_sigterm() -> Iterator[None]:
    """While the block runs, SIGTERM raises :class:`Stopped` in it, or is passed on. Only in the main thread."""
    global _asked
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    install_handler()
    try:
        yield
    except SystemExit as ended:
        if ended.code == signal.SIGTERM:  # the handler that ray.init sets
            raise Stopped from ended
        raise
    finally:
        _asked = False
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)


def install_handler() -> None:
    """Set our handler: within :func:`handling_sigterm`, after a library has set one of its own."""
    if threading.current_thread() is threading.main_thread() and not _asked:
        signal.signal(signal.SIGTERM, _handle)


@contextlib.contextmanager
def forwarding_sigterm(action: Callable[[], None]) -> Iterator[None]:
    """While the block runs, SIGTERM calls ``action`` in the main thread, which sees to it that the block ends."""
    _passed_on.append(action)
    try:
        install_handler()
        yield
    finally:
        _passed_on.remove(action)


def request_stop() -> None:
    """As SIGTERM, from any thread: the run of this process saves and raises :class:`Stopped`; where nothing is to be
    saved, the process ends here with that exit status."""
    global _asked
    _asked = True
    try:
        if not _passed_on:
            raise Stopped
        _passed_on[-1]()
    except Stopped as stopped:
        os._exit(stopped.code)


def _handle(number: int, frame: object) -> None:
    global _asked
    _asked = True
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if not _passed_on:
        raise Stopped
    _passed_on[-1]()
