"""Find the installed TensorRT and the backend to use on this machine."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Sequence
from types import ModuleType

from radioplat.common.imports import INSTALL_TENSORRT
from radioplat.common.imports import TENSORRT as MODULES
from radioplat.errors import EngineError
from radioplat.spec.schema.engine import EngineBackend

RTX, TENSORRT = MODULES["tensorrt_rtx"], MODULES["tensorrt"]


def load_tensorrt(
    names: Sequence[str] = (*RTX, *TENSORRT),
    hint: str = INSTALL_TENSORRT["tensorrt_rtx"],
    where: str = "gen_trt_engine.backend",
) -> ModuleType:
    """Import the first TensorRT that can be imported.

    Args:
        hint: how to install one.
        where: the field or file that needs it.

    Raises:
        EngineError: none can; the hint says how to install one.
    """
    broken = []
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        except (ImportError, OSError) as error:  # installed without one of its shared libraries
            broken.append(f"{name}: {error}")
    reasons = f" ({'; '.join(broken)})" if broken else ""
    raise EngineError(f"no TensorRT can be imported{reasons}", where=where, hint=hint)


def choose_backend(backend: EngineBackend) -> tuple[EngineBackend, str]:
    """Return the backend to use, and the reason."""
    if backend is not EngineBackend.auto:
        return backend, "set by gen_trt_engine.backend"
    import torch

    without = "tensorrt cannot be imported" if not _imports(TENSORRT) else "there is no GPU for tensorrt to build on"
    if _imports(TENSORRT) and torch.cuda.is_available():
        return EngineBackend.tensorrt, "auto: tensorrt imports and there is a GPU"
    if _imports(RTX):
        return EngineBackend.tensorrt_rtx, f"auto: {without}, and tensorrt_rtx builds without a GPU"
    return EngineBackend.onnxruntime, f"auto: {without}, and tensorrt_rtx is not installed"


def cuda_driver() -> str | None:
    """Return the newest CUDA version that this machine's NVIDIA driver supports (``13.0``); None without a driver."""
    version = ctypes.c_int()
    try:
        if ctypes.CDLL("libcuda.so.1").cuDriverGetVersion(ctypes.byref(version)) != 0:
            return None
    except (OSError, AttributeError):
        return None
    return f"{version.value // 1000}.{version.value % 1000 // 10}"


def _imports(names: Sequence[str]) -> bool:
    try:
        load_tensorrt(names)
    except EngineError:
        return False
    return True
