"""Whether this CPU multiplies INT8 exactly.

AVX2 alone adds two products in 16 bits, which overflow, so that onnxruntime's results of full 8-bit weights are other
ones there (its documentation advises 7 bits, our target x86).
"""

from __future__ import annotations

import platform
from pathlib import Path

import pytest


def _flags() -> set[str]:
    try:
        return set(Path("/proc/cpuinfo").read_text(encoding="utf-8").split())
    except OSError:
        return set()


HAS_INT8_UNITS = platform.machine() == "aarch64" or bool(_flags() & {"amx_int8", "avx512_vnni", "avx_vnni"})
needs_int8_units = pytest.mark.skipif(not HAS_INT8_UNITS, reason="INT8 products overflow on a CPU without VNNI")
