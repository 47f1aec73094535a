"""Which errors mean that the memory of a GPU or of the host ran out."""

from __future__ import annotations

import re

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


def ran_out(error: BaseException) -> bool:
    """Return True if ``error`` means that GPU or host memory ran out.

    torch's and Ray's ``OutOfMemoryError`` are recognized by their names, so that this module imports neither.
    """
    if isinstance(error, MemoryError) or any(kind.__name__ == "OutOfMemoryError" for kind in type(error).__mro__):
        return True
    return isinstance(error, RuntimeError) and says_out_of_memory(str(error))
