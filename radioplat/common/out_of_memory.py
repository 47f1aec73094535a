"""Which errors mean that the memory of a GPU or of the host ran out."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator

from radioplat.errors import TrainingError

# CUDA and its libraries (cuBLAS, cuDNN, cuSOLVER, cuFFT), which allocate outside of torch's allocator; NCCL ("Failed to
# CUDA calloc async 4 bytes", below "Last error:"); torch's allocator of host memory, C++, and the operating system.
WORDS = (
    r"out of memory|alloc(?:ation)?_failed"
    r"|failed to (?:cuda )?(?:host |[cm])alloc|failed to allocate (?:cpu|gpu) memory"
    r"|can't allocate memory|cannot allocate memory|not enough memory|std::bad_alloc"
)
_SEARCH = re.compile(WORDS, re.IGNORECASE).search


def says_out_of_memory(text: str) -> bool:
    """Return True if a message says that an allocation of memory failed."""
    return _SEARCH(text) is not None


@contextlib.contextmanager
def names_memory(where: str) -> Iterator[None]:
    """Name the field ``where``, a batch size, if memory runs out in this block.

    Raises:
        TrainingError: memory ran out.
    """
    try:
        yield
    except Exception as error:
        if not ran_out(error):
            raise
        first = (str(error) or type(error).__name__).splitlines()[0]
        raise TrainingError(f"memory ran out: {first}", where=where, hint="Take a smaller one.") from error


def ran_out(error: BaseException) -> bool:
    """Return True if ``error`` means that GPU or host memory ran out.

    torch's and Ray's ``OutOfMemoryError`` are recognized by their names, so that this module imports neither.
    """
    if isinstance(error, MemoryError) or any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__):
        return True
    return isinstance(error, RuntimeError) and says_out_of_memory(str(error))
