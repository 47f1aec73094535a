"""Driver, CUDA and NCCL, as far as this machine has GPUs."""

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
        cuda: the newest CUDA that it runs, ``13.0``.
        gpus: names of the cards.
    """

    version: str
    cuda: str
    gpus: tuple[str, ...]


def driver() -> Driver | None:
    """What NVML says; None where no driver answers."""
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
    """Whether an NVIDIA card is in the machine, with or without a driver."""
    for vendor in Path("/sys/bus/pci/devices").glob("*/vendor"):
        try:
            kind = (vendor.parent / "class").read_text().strip()
            if vendor.read_text().strip() == "0x10de" and kind.startswith("0x03"):
                return True
        except OSError:
            continue
    return False


def gpu(found: Driver | None) -> Iterator[Finding]:
    """Whether what is there fits together."""
    if found is None:
        if has_cards():
            hint = "Install NVIDIA's driver; in a container, its toolkit and `--gpus all`."
            yield fail("GPU", "a card is there, and no driver answers", hint)
        else:
            yield ok("GPU", "none: runs compute on the CPU")
        return
    yield ok("GPU", f"{len(found.gpus)} x {', '.join(dict.fromkeys(found.gpus))}")
    import torch

    if torch.version.cuda is None:
        hint = "pip install torch from the ordinary registry instead of its CPU index."
        yield fail("driver", f"{found.version}, and torch {torch.__version__} is built for the CPU alone", hint)
        return
    yield driver_fits(found, torch.version.cuda)
    if not torch.cuda.is_available():
        yield fail("CUDA", "torch sees no GPU", f"CUDA_VISIBLE_DEVICES={os.environ.get('CUDA_VISIBLE_DEVICES')!r}")
    if torch.distributed.is_nccl_available():
        yield ok("NCCL", ".".join(map(str, torch.cuda.nccl.version())))
    else:
        yield fail("NCCL", "torch was built without it", "Several GPUs need it: another build of torch.")
    yield from nccl_interface(os.environ.get("NCCL_SOCKET_IFNAME", ""))


def driver_fits(found: Driver, cuda: str) -> Finding:
    """Whether the driver runs the CUDA that torch was built with."""
    said = f"{found.version} (CUDA {found.cuda}); torch has CUDA {cuda}"
    least = DRIVERS.get(int(cuda.split(".")[0]))
    if least is not None and int(found.version.split(".")[0]) < least:
        return fail("driver", said, f"Update it to {least} or newer, or install a torch for CUDA {found.cuda}.")
    return ok("driver", said)


def nccl_interface(asked: str) -> Iterator[Finding]:
    """Whether the interface that NCCL_SOCKET_IFNAME names is there: prefixes, ``=`` exact names, ``^`` others."""
    names = {name for _, name in socket.if_nameindex()}
    if asked and not asked.startswith("^"):
        exact, wanted = asked.startswith("="), asked.lstrip("=").split(",")
        if not any(name == w if exact else name.startswith(w) for name in names for w in wanted):
            hint = f"Interfaces here: {', '.join(sorted(names))}."
            yield fail("NCCL_SOCKET_IFNAME", f"{asked}: no such interface", hint)
