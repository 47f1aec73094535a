"""The stack on which this thread handles signals, kept while a library replaces it.

OpenVINO sets a stack of its own when it prepares a model, and the one before when the model is freed. Of two models
that are freed in the order of their making, the second sets the stack that the first has freed: the next signal (a
SIGTERM of a preempted node) then ends the process with SIGSEGV (measured with 2026.4.1). Python's own stack is large
enough for every CPU, so it is set again.
"""

from __future__ import annotations

import contextlib
import ctypes
import sys
from collections.abc import Iterator


class _Stack(ctypes.Structure):
    """``stack_t`` of sigaltstack(2)."""

    _fields_ = (("base", ctypes.c_void_p), ("flags", ctypes.c_int), ("size", ctypes.c_size_t))


@contextlib.contextmanager
def kept_signal_stack() -> Iterator[None]:
    """Set this thread's signal stack after the block to what it is before it."""
    if sys.platform != "linux":
        yield
        return
    library, before = ctypes.CDLL(None), _Stack()
    library.sigaltstack(None, ctypes.byref(before))
    try:
        yield
    finally:
        library.sigaltstack(ctypes.byref(before), None)
