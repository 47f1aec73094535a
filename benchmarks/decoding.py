"""What does it cost to decode formats other than JPEG in a process apart, and what does that spare a reader?

``python -m benchmarks.decoding [--rounds 15]``. Images of noise are decoded in this process, by the function that the
process apart calls, and in the process apart, in turn, by one thread and by two; medians of images/s, process apart
over this process, and their spread. Then a hostile PNG, 60,000 colour profiles around 48 pixels, is decoded in either.

The last line on stdout is one JSON object: by format, side and threads ``ratio`` (median), ``least`` and ``most``; and
``hostile``: the seconds of CPU time in this process, and the seconds and the reason in the process apart.
"""

from __future__ import annotations

import argparse
import io
import json
import statistics
import struct
import time
import zlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
from PIL import Image

from radioplat.data.images.decode import MAX_PIXELS, BadSample, checked_header, decode_rgb, rgb_bands

IMAGES, THREADS, PROFILES = 24, (1, 2), 60_000
ALLOWED = 1_000_000  # pixels, of the hostile image


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=15)
    given = parser.parse_args()
    found: dict[str, Any] = {}
    for kind in ("PNG", "WEBP"):
        for side in (224, 512):
            data = encoded(side, kind)
            for threads in THREADS:
                found[f"{kind} {side} px, {threads} thread(s)"] = compared(data, threads, given.rounds)
    print(json.dumps(found | {"hostile": hostile()}))


def encoded(side: int, kind: str) -> bytes:
    """Return a smooth picture with some noise, as photographs have."""
    draw = np.random.default_rng(0)
    small = Image.fromarray(draw.integers(0, 256, (side // 16, side // 16, 3), np.uint8))
    pixels = np.asarray(small.resize((side, side), Image.Resampling.BICUBIC)).astype(int)
    file = io.BytesIO()
    noisy = (pixels + draw.integers(-4, 5, pixels.shape)).clip(0, 255).astype(np.uint8)
    Image.fromarray(noisy).save(file, kind)
    return file.getvalue()


def here(data: bytes, max_pixels: int = MAX_PIXELS) -> np.ndarray:
    """Decode in this process."""
    return np.concatenate(list(rgb_bands(io.BytesIO(data), checked_header(data, max_pixels))))


def apart(data: bytes) -> np.ndarray:
    """Decode in the process apart."""
    return decode_rgb(data).rgb


def compared(data: bytes, threads: int, rounds: int) -> dict[str, float]:
    """Return images/s in the process apart over those in this process."""
    assert np.array_equal(here(data), apart(data))
    ratios = []
    with ThreadPoolExecutor(threads) as pool:
        timed(pool, apart, data)  # a process for each thread is started
        for _ in range(rounds):
            seconds = [timed(pool, decode, data) for decode in (here, apart)]
            ratios.append(seconds[0] / seconds[1])
    return {name: round(of(ratios), 2) for name, of in (("ratio", statistics.median), ("least", min), ("most", max))}


def timed(pool: ThreadPoolExecutor, decode: Callable[[bytes], Any], data: bytes) -> float:
    """Return the seconds for :data:`IMAGES` images."""
    begin = time.perf_counter()
    list(pool.map(decode, [data] * IMAGES))
    return time.perf_counter() - begin


def hostile() -> dict[str, Any]:
    """Decode a PNG of 48 pixels whose colour profiles inflate to a million bytes each."""
    content = zlib.compress(bytes(1_000_000), 9)
    chunk = b"iCCP" + b"x\0\0" + content
    profile = struct.pack(">I", len(chunk) - 4) + chunk + struct.pack(">I", zlib.crc32(chunk))
    file = io.BytesIO()
    Image.new("RGB", (8, 6)).save(file, "PNG")
    data = file.getvalue()[:33] + profile * PROFILES + file.getvalue()[33:]
    begin = time.process_time()
    here(data, ALLOWED)
    before, since = time.process_time() - begin, time.perf_counter()
    try:
        reason = str(decode_rgb(data, max_pixels=ALLOWED).rgb.shape)
    except BadSample as error:
        reason = error.reason
    took = time.perf_counter() - since
    return {"bytes": len(data), "here_cpu_s": round(before, 1), "apart_s": round(took, 1), "apart": reason}


if __name__ == "__main__":
    main()
