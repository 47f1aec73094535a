"""What ``export`` makes for CPUs."""

from __future__ import annotations

from enum import Enum


class CpuQuantization(str, Enum):
    """How a student becomes INT8 for onnxruntime on a CPU."""

    dynamic = "dynamic"  # weights; ranges of activations anew from each image. Linear layers alone
    static = "static"  # weights and activations, with ranges from real images


class CpuTarget(str, Enum):
    """The CPU that static INT8 is for."""

    x86_vnni = "x86_vnni"  # unsigned activations, signed weights
    x86 = "x86"  # without VNNI: the same with weights of 7 bits, so that 16-bit sums do not overflow
    arm = "arm"  # both signed
