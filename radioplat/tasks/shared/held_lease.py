"""Wait for an earlier process of the same task, which may take some seconds to end after its driver was killed."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import TypeVar

from radioplat.tracking.lease import LeaseTaken

Result = TypeVar("Result")
TIMEOUT_S = 60.0


def retry_lease(action: Callable[[], Result], timeout_s: float = TIMEOUT_S) -> Result:
    """Run ``action``, again while another process still has the lease of its folder.

    Raises:
        LeaseTaken: it still has it after ``timeout_s``.
    """
    until = time.monotonic() + timeout_s
    while True:
        try:
            return action()
        except LeaseTaken:
            if time.monotonic() > until:
                raise
        time.sleep(1)
