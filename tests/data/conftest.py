"""Small real shards: photographs that scikit-image bundles, written as the tests ask."""

from __future__ import annotations

import io
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import skimage
from PIL import Image

BUNDLED = Path(skimage.__file__).parent / "data"


@pytest.fixture(scope="session")
def photo():
    """photo(width, height, format, name) -> bytes of a bundled photograph at that size."""

    def make(width=64, height=48, format="JPEG", name="astronaut.png", mode="RGB", **save) -> bytes:
        with Image.open(BUNDLED / name) as image:
            image = image.convert("RGB").resize((width, height)).convert(mode)
        buffer = io.BytesIO()
        image.save(buffer, format, **({"quality": 95} if format == "JPEG" else {}) | save)
        return buffer.getvalue()

    return make


@pytest.fixture(scope="session")
def write_tar():
    """write_tar(path, [(name, bytes), ...]) -> path."""

    def write(path: Path, members: list[tuple[str, bytes]]) -> Path:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tarfile.open(path, "w") as tar:
            for name, data in members:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                tar.addfile(info, io.BytesIO(data))
        return path

    return write


HOLD = r"""
import fcntl, os, signal, sys
signal.signal(signal.SIGIO, lambda *_: os.write(1, b"asked\n"))
files = [os.open(path, os.O_RDWR) for path in sys.argv[1:]]
for file in files:
    fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
print("held", flush=True)
sys.stdin.readline()
"""


class SlowStorage:
    """Files whose ``open`` hangs inside the kernel, for every other process, until they are released.

    A write lease (fcntl(2), F_SETLEASE) does that: who opens the file waits until the holder lets go, 45 s at most.
    """

    def __init__(self) -> None:
        self._holders: list[subprocess.Popen] = []

    def hold(self, *paths: str | Path) -> None:
        """Let whoever opens one of ``paths`` wait."""
        command = [sys.executable, "-c", HOLD, *map(str, paths)]
        holder = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        self._holders.append(holder)
        assert holder.stdout.readline() == "held\n"

    def wait_until_asked(self) -> None:
        """Return once somebody waits for a file that :meth:`hold` named last."""
        assert self._holders[-1].stdout.readline() == "asked\n"

    def release(self) -> None:
        """Let everybody go on."""
        while self._holders:
            self._holders.pop().communicate("\n")


@pytest.fixture
def slow_storage() -> Iterator[SlowStorage]:
    """See :class:`SlowStorage`."""
    storage = SlowStorage()
    yield storage
    storage.release()


@pytest.fixture(scope="session")
def bomb_png(photo) -> bytes:
    """A PNG of a few hundred bytes whose header claims 30000 x 30000."""
    import struct
    import zlib

    data = photo(8, 8, "PNG")
    chunk = b"IHDR" + struct.pack(">II", 30_000, 30_000) + data[24:29]
    return data[:12] + chunk + struct.pack(">I", zlib.crc32(chunk)) + data[33:]


@pytest.fixture(scope="session")
def coordinates():
    """coordinates(width, height) -> uint8 [H, W, 3] whose red and green are x and y, in pixel centres, over 0..255."""

    def make(width: int, height: int) -> np.ndarray:
        x, y = np.meshgrid((np.arange(width) + 0.5) / width, (np.arange(height) + 0.5) / height)
        return np.rint(np.stack([x, y, np.full_like(x, 0.5)], -1) * 255).astype(np.uint8)

    return make
