"""What a TensorRT builder said while it worked: why it failed, and which kernels it chose."""

from __future__ import annotations

import re
import sys
from collections import Counter

# A machine without a GPU adds these to every failure; they are never the reason, since a CPU build needs no driver.
_NOISE = re.compile(r"cudaError 35|--- (Begin|End) node ---|^ModelImporter\.cpp:\d+: (While parsing|ERROR)")
_KERNEL = re.compile(r"^Name: (?P<name>.*?), LayerType: (?P<kind>\w+), Inputs: \[ \{.*?Datatype: (?P<type>\w+)")
_NAMES = {"Float": "fp32", "Half": "fp16", "BFloat16": "bf16", "Int8": "int8", "FP8": "fp8", "FP4": "fp4"}


class EngineLog:
    """Collects the messages of one build.

    A build of a small net logs thousands of lines, so only errors, warnings and the kernel list are kept.

    Attributes:
        errors, warnings: messages in order.
    """

    def __init__(self, echo: bool = False) -> None:
        """With ``echo``, everything but the most detailed level goes to standard error too."""
        self.errors: list[str] = []
        self.warnings: list[str] = []
        self._echo = echo
        self._layers: str | None = None

    def add(self, severity: str, text: str) -> None:
        """Take one message; ``severity`` is the name of TensorRT's level."""
        if severity in ("ERROR", "INTERNAL_ERROR"):
            self.errors.append(text)
        elif severity == "WARNING":
            self.warnings.append(text)
        elif text.startswith("Layers:"):
            self._layers = text
        if self._echo and severity != "VERBOSE":
            print(f"TensorRT {severity}: {text}", file=sys.stderr)

    def reasons(self, limit: int = 3) -> list[str]:
        """The errors as single lines, without repetitions and without what a missing GPU driver adds."""
        return readable(self.errors, limit)

    def kernels(self) -> dict[str, int] | None:
        """Convolution, GEMM and attention kernels by the datatype of their first input (``{"int8": 20, "fp32": 1}``).

        Read from the builder's ``Layers:`` message, which no document describes: None where it is absent or looks
        different.
        """
        counts: Counter[str] = Counter()
        for line in (self._layers or "").splitlines():
            kernel = _KERNEL.match(line)
            if kernel and _multiplies(kernel["kind"], kernel["name"]):
                counts[_NAMES.get(kernel["type"], kernel["type"])] += 1
        return dict(counts) or None


def readable(messages: list[str], limit: int = 3) -> list[str]:
    """Messages one line each, told once, without noise; the noise alone if there is nothing else."""
    lines = [line.strip() for message in messages for line in message.splitlines() if line.strip()]
    useful = [line for line in lines if not _NOISE.search(line)] or lines
    return [line[:400] for line in dict.fromkeys(useful)][:limit]


def _multiplies(kind: str, name: str) -> bool:
    # "runtime_fusion" is a GEMM or convolution with what follows it; fused attention is a generated kernel.
    return kind in ("gemm", "correlation", "convolution", "runtime_fusion") or "_gemm_" in name
