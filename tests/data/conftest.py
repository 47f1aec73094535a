"""Small real shards: photographs that scikit-image bundles, written as the tests ask."""

from __future__ import annotations

import io
import tarfile
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
