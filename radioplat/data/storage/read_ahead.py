"""A file seen through a small buffer: neighbouring small reads become one read of the storage."""

from __future__ import annotations

import io
from typing import Any

from radioplat.data.storage.files import RangeFile
from radioplat.spec.resolved.paths import is_remote

# Bytes read at once. A jump over an image costs one read either way; on an object store a request costs what hundreds
# of kilobytes cost, so more of what may be needed comes along: sidecar, next header and next image header.
LOCAL_BYTES, REMOTE_BYTES = 1 << 12, 1 << 14


class Window:
    """Reads ``path`` by offset; not for several threads.

    Attributes:
        size: of the file, bytes.
        data, start: the bytes at hand, and where in the file they begin.
        bytes_read: what was asked of the storage so far.
    """

    def __init__(self, path: str) -> None:
        self._file = RangeFile(path)
        self._ahead = REMOTE_BYTES if is_remote(path) else LOCAL_BYTES
        self.start, self.data = 0, b""
        self.size = self._file.state.size
        self.bytes_read = 0

    def hold(self, offset: int, length: int) -> int:
        """Have ``length`` bytes from ``offset`` at hand, fewer only where the file ends.

        Returns:
            Where in :attr:`data` they begin.

        Raises:
            OSError: the storage fails for good.
        """
        place = offset - self.start
        if 0 <= place and place + length <= len(self.data):
            return place
        self.data = self._file.read(offset, max(length, self._ahead))
        self.start = offset
        self.bytes_read += len(self.data)
        return 0

    def read(self, offset: int, length: int) -> bytes:
        """``length`` bytes from ``offset``; as :meth:`hold`."""
        place = self.hold(offset, length)
        return self.data[place : place + length]

    def span(self, start: int, length: int) -> io.BufferedReader:
        """A piece of the file as a stream of its own: reads stop at its end."""
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
