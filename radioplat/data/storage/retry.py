"""Retry storage errors that may be temporary, with growing pauses and a limited number of times."""

from __future__ import annotations

import contextlib
import errno
import random
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import TypeVar

from radioplat.data.storage.object_stores import credentials_refused, renew_clients

ATTEMPTS = 5
FIRST_PAUSE_S = 0.1  # each pause is four times the previous one: 0.1, 0.4, 1.6, 6.4
Result = TypeVar("Result")
_attempts: ContextVar[int | None] = ContextVar("attempts", default=None)

_LASTING = frozenset({errno.ENOENT, errno.EACCES, errno.EPERM, errno.ENOTDIR, errno.EISDIR, errno.ENAMETOOLONG,
                      errno.ELOOP, errno.EINVAL, errno.EBADF, errno.EMFILE})  # fmt: skip
# Errors of object stores have text, no error numbers.
_LASTING_WORDS = ("ACCESS_DENIED", "NO_SUCH_BUCKET", "NO_SUCH_KEY", "RESOURCE_NOT_FOUND", "INVALID_ACCESS_KEY_ID",
                  "SIGNATURE_DOES_NOT_MATCH", "UNRECOGNIZED_CLIENT", "HTTP status 400", "HTTP status 401",
                  "HTTP status 403", "HTTP status 404", "Permission denied", "PERMISSION_DENIED")  # fmt: skip


def retried(action: Callable[[], Result], path: str) -> Result:
    """Return the result of ``action``, repeated while it fails with an error that may be temporary.

    Args:
        path: the accessed path, added to errors that have none.

    Raises:
        OSError: the error is permanent, or persisted for :data:`ATTEMPTS` tries (about nine seconds; longer if the
            store throttles, as each request then waits for its turn).
    """
    pause, renewed, attempts = FIRST_PAUSE_S, False, _attempts.get() or ATTEMPTS
    for attempt in range(1, attempts + 1):
        try:
            return action()
        except OSError as error:
            if credentials_refused(error) and not renewed and attempt < attempts:
                renewed = True  # they may have expired, and new ones be available
                renew_clients()
                continue
            if attempt == attempts or not may_pass(error):
                if error.strerror is None:  # pyarrow's errors have a message and no number
                    raise OSError(error.errno or errno.EIO, " ".join(str(error).split()), path) from error
                raise
        time.sleep(pause * random.uniform(0.7, 1.3))  # random, so that workers do not retry together
        pause *= 4
    raise AssertionError("unreachable")


@contextlib.contextmanager
def tried_once() -> Iterator[None]:
    """Disable retries in the block, for callers that retry themselves."""
    token = _attempts.set(1)
    try:
        yield
    finally:
        _attempts.reset(token)


def may_pass(error: OSError) -> bool:
    """Return True if a retry can help: after a lost connection or throttling, but not for a missing file."""
    if isinstance(error, (FileNotFoundError, PermissionError, NotADirectoryError, IsADirectoryError)):
        return False
    return error.errno not in _LASTING and not any(word in str(error) for word in _LASTING_WORDS)
