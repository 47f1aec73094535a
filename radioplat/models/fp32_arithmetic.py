"""torch's switches of fp32 arithmetic on GPUs, for the process of a worker or of a teacher's replica."""

from __future__ import annotations

import os

import torch

from radioplat.spec.resolved.precision import Fp32Arithmetic


def set_fp32_arithmetic(arithmetic: Fp32Arithmetic, device: torch.device) -> None:
    """Set cuDNN's switches and, for a GPU, whether fp32 is multiplied as TF32; on a CPU fp32 stays what it is.

    TF32 rounds factors to 10 bits of fraction and sums in fp32. float64, in which statistics and heads are fitted, is
    not concerned. A run that began with a version without ``train.tf32`` keeps torch's own setting, which that version
    left alone: convolutions as TF32, other products in fp32.
    """
    torch.backends.cudnn.benchmark = arithmetic.benchmark
    torch.backends.cudnn.deterministic = arithmetic.deterministic or arithmetic.exact
    if device.type == "cuda" and arithmetic.exact:
        # Kernels without a deterministic variant are named in a warning, and run.
        os.environ.setdefault("CUBLAS_WORKSPACE_CONFIG", ":4096:8")
        torch.use_deterministic_algorithms(True, warn_only=True)
    if device.type == "cuda" and arithmetic.tf32 is not None:
        torch.set_float32_matmul_precision("high" if arithmetic.tf32 else "highest")
        torch.backends.cudnn.allow_tf32 = arithmetic.tf32
