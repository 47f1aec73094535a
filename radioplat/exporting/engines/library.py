"""Which TensorRT there is, and which backend can work on this machine."""

from __future__ import annotations

import ctypes
import importlib
from collections.abc import Sequence
from types import ModuleType

from radioplat.errors import EngineError
from radioplat.spec.schema.engine import EngineBackend

RTX = ("tensorrt_rtx", "tensorrt_rtx_bindings")
TENSORRT = ("tensorrt",)
_INSTALL = "Install one: pip install 'radioplat[engine]'."


def load_tensorrt(names: Sequence[str] = (*RTX, *TENSORRT), hint: str = _INSTALL) -> ModuleType:
    """The first TensorRT that can be imported.

    Raises:
        EngineError: none can; says how to install one.
    """
    broken = []
    for name in names:
        try:
            return importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        except (ImportError, OSError) as error:  # installed, but one of its shared libraries is not
            broken.append(f"{name}: {error}")
    found = f" ({'; '.join(broken)})" if broken else ""
    raise EngineError(f"no TensorRT can be imported{found}", hint=hint)


def choose_backend(asked: EngineBackend) -> tuple[EngineBackend, str]:
    """The backend that builds, and why it was chosen."""
    if asked is not EngineBackend.auto:
        return asked, "gen_trt_engine.backend names it"
    import torch

    without = "tensorrt cannot be imported" if not _imports(TENSORRT) else "there is no GPU for tensorrt to build on"
    if _imports(TENSORRT) and torch.cuda.is_available():
        return EngineBackend.tensorrt, "auto: tensorrt imports and there is a GPU"
    if _imports(RTX):
        return EngineBackend.tensorrt_rtx, f"auto: {without}, and tensorrt_rtx builds without a GPU"
    return EngineBackend.onnxruntime, f"auto: {without}, and tensorrt_rtx is not installed"


def cuda_driver() -> str | None:
    """The newest CUDA that the NVIDIA driver of this machine supports (``13.0``); None without a driver."""
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
