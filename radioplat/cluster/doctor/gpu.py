"""Checks of driver, CUDA and NCCL, if this machine has GPUs."""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from radioplat.cluster.doctor.finding import Finding, fail, ok

# NVIDIA, "CUDA Compatibility", minor version compatibility: the oldest driver that runs each major version of CUDA.
DRIVERS = {11: 450, 12: 525, 13: 580}


@dataclass(frozen=True)
class Driver:
    """NVIDIA's driver.

    Attributes:
        version: ``580.65.06``.
        cuda: newest supported CUDA version, ``13.0``.
        gpus: names of the cards.
    """

    version: str
    cuda: str
    gpus: tuple[str, ...]


def driver() -> Driver | None:
    """Return driver and GPUs from NVML; None if no driver answers."""
    try:
        import pynvml

        pynvml.nvmlInit()
    except Exception:  # the package or libnvidia-ml.so is missing, or no driver is loaded
        return None
    try:
        number = pynvml.nvmlSystemGetCudaDriverVersion_v2()
        handles = [pynvml.nvmlDeviceGetHandleByIndex(i) for i in range(pynvml.nvmlDeviceGetCount())]
        names = tuple(str(pynvml.nvmlDeviceGetName(handle)) for handle in handles)
        return Driver(str(pynvml.nvmlSystemGetDriverVersion()), f"{number // 1000}.{number % 1000 // 10}", names)
    finally:
        pynvml.nvmlShutdown()


def has_cards() -> bool:
    """Return True if the machine has an NVIDIA card, with or without a driver."""
    for vendor in Path("/sys/bus/pci/devices").glob("*/vendor"):
        try:
            kind = (vendor.parent / "class").read_text().strip()
            if vendor.read_text().strip() == "0x10de" and kind.startswith("0x03"):
                return True
        except OSError:
            continue
    return False


def gpu(installed: Driver | None) -> Iterator[Finding]:
    """Check that GPUs, driver, torch and NCCL fit together."""
    if installed is None:
        if has_cards():
            hint = "Install NVIDIA's driver; in a container, its toolkit and `--gpus all`."
            yield fail("GPU", "there is a card, but no driver answers", hint)
        else:
            yield ok("GPU", "none: runs compute on the CPU")
        return
    yield ok("GPU", f"{len(installed.gpus)} x {', '.join(dict.fromkeys(installed.gpus))}")
    import torch

    if torch.version.cuda is None:
        hint = "pip install torch from the ordinary registry instead of its CPU index."
        yield fail("driver", f"{installed.version}, but torch {torch.__version__} is built without CUDA", hint)
        return
    yield driver_fits(installed, torch.version.cuda)
    if not torch.cuda.is_available():
        yield fail("CUDA", "torch sees no GPU", f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')!r}")
    if torch.distributed.is_nccl_available():
        yield ok("NCCL", ".".join(map(str, torch.cuda.nccl.version())))
    else:
        yield fail("NCCL", "torch was built without it", "Several GPUs need it: another build of torch.")
    yield from nccl_interface(os.environ.get("NCCL_SOCKET_IFNAME", ""))


def driver_fits(installed: Driver, cuda: str) -> Finding:
    """Check that the driver supports the CUDA version that torch was built with."""
    versions = f"{installed.version} (CUDA {installed.cuda}); torch has CUDA {cuda}"
    least = DRIVERS.get(int(cuda.split(".")[0]))
    if least is not None and int(installed.version.split(".")[0]) < least:
        hint = f"Update it to {least} or newer, or install a torch for CUDA {installed.cuda}."
        return fail("driver", versions, hint)
    return ok("driver", versions)


def nccl_interface(variable: str) -> Iterator[Finding]:
    """Check that the interface of NCCL_SOCKET_IFNAME exists.

    Args:
        variable: its value: prefixes of names, ``=`` and exact names, or ``^`` and names to exclude.
    """
    names = {name for _, name in socket.if_nameindex()}
    if variable and not variable.startswith("^"):
        exact, wanted = variable.startswith("="), variable.lstrip("=").split(",")
        if not any(name == w if exact else name.startswith(w) for name in names for w in wanted):
            hint = f"Interfaces here: {', '.join(sorted(names))}."
            yield fail("NCCL_SOCKET_IFNAME", f"{variable}: no such interface", hint)
