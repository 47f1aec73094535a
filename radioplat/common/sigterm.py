"""SIGTERM handling: save a checkpoint and exit with status 75; the same command then continues the run.

A scheduler sends SIGTERM before it takes a machine away. Before the first step there is nothing to save and the command
exits at once; later its workers are asked to save and stop, as before a node is drained. A second SIGTERM ends the
process at once. :func:`request_stop` does the same without a signal; trials of a sweep use it.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Callable, Iterator

from radioplat.errors import Stopped

_passed_on: list[Callable[[], None]] = []  # actions of the nested forwarding_sigterm blocks, innermost last
_requested = False


def stop_requested() -> bool:
    """Return True if SIGTERM or :func:`request_stop` arrived during :func:`handling_sigterm`."""
    return _requested


@contextlib.contextmanager
def handling_sigterm() -> Iterator[None]:
    """During the block, SIGTERM raises :class:`Stopped`, or calls the action of :func:`forwarding_sigterm`.

    Without effect outside the main thread.
    """
    global _requested
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.getsignal(signal.SIGTERM)
    install_handler()
    try:
        yield
    except SystemExit as ended:
        if ended.code == signal.SIGTERM:  # raised by the handler that ray.init sets
            raise Stopped from ended
        raise
    finally:
        _requested = False
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)


def install_handler() -> None:
    """Set the SIGTERM handler again, after a library has replaced it inside :func:`handling_sigterm`."""
    if threading.current_thread() is threading.main_thread() and not _requested:
        signal.signal(signal.SIGTERM, _handle)


@contextlib.contextmanager
def forwarding_sigterm(action: Callable[[], None]) -> Iterator[None]:
    """During the block, SIGTERM calls ``action`` in the main thread; ``action`` must cause the block to end."""
    _passed_on.append(action)
    try:
        install_handler()
        yield
    finally:
        _passed_on.remove(action)


def request_stop() -> None:
    """Do the same as SIGTERM, from any thread; if there is nothing to save, exit at once with status 75."""
    global _requested
    _requested = True
    try:
        if not _passed_on:
            raise Stopped
        _passed_on[-1]()
    except Stopped as stopped:
        os._exit(stopped.code)


def _handle(number: int, frame: object) -> None:
    global _requested
    _requested = True
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    if not _passed_on:
        raise Stopped
    _passed_on[-1]()
