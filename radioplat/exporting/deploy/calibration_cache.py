"""TensorRT's calibration cache: INT8 scales of a graph without Q/DQ, for TensorRT up to 10.

A header ``TRT-<version>-EntropyCalibration2``, then a line ``tensor: hhhhhhhh`` for each: the bits of the float32
scale, amax / 127, in hexadecimal, most significant byte first. TensorRT 11 removed calibrators and caches.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path

from radioplat.common.atomic_files import written_aside
from radioplat.errors import EngineError
from radioplat.spec.resolved.tensorrt_version import FIRST_WITHOUT_CACHE, parse_version

VERSION = "export.tensorrt_version"


def header(version: str) -> str:
    """Return the first line, with NV_TENSORRT_VERSION: 8601 for 8.6.1, from 10 on 100300 for 10.3.0.

    Raises:
        EngineError: TensorRT 11 or newer, or not a version.
    """
    parsed = parse_version(version)
    if parsed is None:
        raise EngineError(f"{version!r} is not a version of TensorRT", where=VERSION, hint="Give it as 8.6.1 or 10.3.")
    major, minor, patch = parsed
    if major >= FIRST_WITHOUT_CACHE:
        raise EngineError(
            f"TensorRT {major} has no calibration caches",
            where=VERSION,
            hint="It reads INT8 ranges from Q/DQ only: export a student from `radioplat quantize`, without a cache.",
        )
    number = major * 10000 + minor * 100 + patch if major >= 10 else major * 1000 + minor * 100 + patch
    return f"TRT-{number}-EntropyCalibration2"


def write_cache(scales: Mapping[str, float], version: str, path: Path) -> Path:
    """Write ``scales``, by tensor.

    Raises:
        EngineError: TensorRT 11 or newer, a scale that is not positive, or a name with a line break.
    """
    lines = [header(version)]
    for tensor, scale in scales.items():
        if not 0 < scale < float("inf") or "\n" in tensor:
            raise EngineError(f"the scale of tensor {tensor!r} is {scale}, and must be positive", where=str(path))
        lines.append(f"{tensor}: {struct.pack('>f', scale).hex()}")
    with written_aside(path) as aside:
        aside.write_text("\n".join(lines) + "\n", encoding="utf-8")
    return path
