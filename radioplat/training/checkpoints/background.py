"""Run one action at a time in a thread, beside the training thread."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor


class Background:
    """A thread for actions, of which at most one is in progress.

    Attributes:
        error: type and message of the last exception that an action raised; empty if there was none.
    """

    def __init__(self) -> None:
        self._thread = ThreadPoolExecutor(1, "checkpoints")
        self._action: Future[None] | None = None
        self.error = ""

    def begin(self, action: Callable[[], object]) -> None:
        """Start ``action`` after the previous one has ended."""

        def guarded() -> None:
            """Call ``action`` and record an exception, which the training threads of all ranks raise later."""
            try:
                action()
            except Exception as error:
                self.error = f"{type(error).__name__}: {error}"

        self.wait()
        self._action = self._thread.submit(guarded)

    def wait(self) -> None:
        """Wait until no action is in progress."""
        action, self._action = self._action, None
        if action is not None:
            action.result()

    def close(self) -> None:
        """Wait for the action in progress and end the thread."""
        self.wait()
        self._thread.shutdown()
