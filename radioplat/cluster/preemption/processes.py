"""Processes of this machine by handle, so that no signal reaches another process that got the same number later."""

from __future__ import annotations

import os
import signal

from radioplat.errors import PlacementError


class Process:
    """A process, for as long as this object lives: the kernel gives its number to no other one's handle.

    Args:
        pid: its process id.

    Raises:
        ProcessLookupError: it has ended.
        PlacementError: ``pid`` cannot be that of a run, or the system gives no handle of it.
    """

    def __init__(self, pid: int) -> None:
        if not 1 < pid < 2**31:  # 1 is the first process of the machine; 0, -1 and -n are groups of processes
            raise PlacementError(f"{pid} is not the process id of a run", hint="Process ids of runs are above 1.")
        self.pid = pid
        try:
            self._handle = os.pidfd_open(pid)
        except ProcessLookupError:
            raise
        except (OSError, AttributeError) as error:
            hint = f"It needs Linux 5.3 and the id of a process. `kill -TERM {pid}` asks the run to save and exit."
            raise PlacementError(f"the system gives no handle of process {pid}: {error}", hint=hint) from None

    def terminate(self) -> None:
        """Send SIGTERM; nothing happens if the process has ended.

        Raises:
            PlacementError: it is another user's.
        """
        try:
            signal.pidfd_send_signal(self._handle, signal.SIGTERM)
        except ProcessLookupError:
            pass
        except OSError as error:
            raise PlacementError(f"process {self.pid} cannot be asked to exit: {error}") from None

    def __del__(self) -> None:
        if hasattr(self, "_handle"):
            os.close(self._handle)
