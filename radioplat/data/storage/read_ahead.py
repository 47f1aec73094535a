"""A buffered reader by offset: small reads close to each other become one read of the storage."""

from __future__ import annotations

import io
from typing import Any

from radioplat.data.storage.files import RangeFile
from radioplat.spec.resolved.paths import is_remote

# Bytes per read. A skip over an image costs one read in any case; on an object store a request costs as much as
# hundreds of kilobytes, so more is read ahead: the sidecar, the next header and the next image header.
LOCAL_BYTES, REMOTE_BYTES = 1 << 12, 1 << 14


class Window:
    """A buffer over ``path``; not thread-safe.

    Attributes:
        size: size of the file in bytes.
        data, start: the buffered bytes, and their offset in the file.
        bytes_read: bytes read from storage so far.
    """

    def __init__(self, path: str) -> None:
        self._file = RangeFile(path)
        self._ahead = REMOTE_BYTES if is_remote(path) else LOCAL_BYTES
        self.start, self.data = 0, b""
        self.size = self._file.state.size
        self.bytes_read = 0

    def hold(self, offset: int, length: int) -> int:
        """Buffer ``length`` bytes from ``offset``, fewer only at the end of the file.

        Returns:
            Their index in :attr:`data`.

        Raises:
            OSError: the storage failed after all retries.
        """
        place = offset - self.start
        if 0 <= place and place + length <= len(self.data):
            return place
        self.data = self._file.read(offset, max(length, self._ahead))
        self.start = offset
        self.bytes_read += len(self.data)
        return 0

    def read(self, offset: int, length: int) -> bytes:
        """Return ``length`` bytes from ``offset``; see :meth:`hold`."""
        place = self.hold(offset, length)
        return self.data[place : place + length]

    def span(self, start: int, length: int) -> io.BufferedReader:
        """Return ``length`` bytes from ``start`` as a seekable stream."""
        return io.BufferedReader(_Span(self, start, length), self._ahead)


class _Span(io.RawIOBase):
    def __init__(self, window: Window, start: int, length: int) -> None:
        super().__init__()
        self._window, self._start, self._length, self._place = window, start, length, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._place, io.SEEK_END: self._length}[whence]
        self._place = max(0, base + offset)
        return self._place

    def readinto(self, buffer: Any) -> int:
        count = min(len(buffer), max(0, self._length - self._place))
        data = self._window.read(self._start + self._place, count) if count else b""
        buffer[: len(data)] = data
        self._place += len(data)
        return len(data)
