"""What a run on Ray does to its process; tests/end_to_end has the runs."""

from __future__ import annotations

import signal
import sys

import pytest

from radioplat.distill.ray_run import _interruptible


def test_an_interruption_is_no_success():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), _interruptible():
        signal.signal(signal.SIGINT, lambda number, frame: sys.exit(0))  # as Ray Train does
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before
