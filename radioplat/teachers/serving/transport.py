"""Transport of features from a teacher to a student: bf16 tensors, or their bits as uint16 arrays.

Arrays pass through Ray's object store without a pickle copy (20 times cheaper than bf16 tensors, which are pickled).
Tensors are sent from device to device by Ray's tensor transport if both ends have NIXL.
"""

from __future__ import annotations

import torch

from radioplat.common import device_copies
from radioplat.common.device_copies import tensor_of
from radioplat.models.features import Features
from radioplat.spec.resolved.terms import COARSER, coarser_map
from radioplat.teachers.serving.packed_features import Array, Packed


def joined(parts: list[Packed]) -> Packed:
    """Concatenate several results of tensors, in order."""
    if len(parts) == 1:
        return parts[0]

    def together(tensors: list[torch.Tensor | None]) -> torch.Tensor | None:
        return None if tensors[0] is None else torch.cat(tensors)

    return Packed(
        together([p.summary for p in parts]),
        together([p.spatial for p in parts]),
        {name: torch.cat([p.named[name] for p in parts]) for name in parts[0].named},
        sum(p.seconds for p in parts),
    )


def pack(features: Features, seconds: float) -> Packed:
    """Return features as contiguous bf16 tensors on their device."""
    narrow = features.map(lambda t: t.detach().to(torch.bfloat16).contiguous())
    return Packed(narrow.summary, narrow.spatial, narrow.named, seconds)


def to_host(packed: Packed) -> Packed:
    """Convert complete tensors on any device to arrays in this process's memory; arrays are returned unchanged."""
    there = [array for array in packed.arrays if isinstance(array, torch.Tensor)]
    arrays = iter([tensor.view(torch.uint16).numpy() for tensor in device_copies.to_host(there)])
    return packed.map(lambda array: next(arrays) if isinstance(array, torch.Tensor) else array)


def is_on_gpu(packed: Packed) -> bool:
    """Return whether the features are tensors in a GPU's memory."""
    return any(isinstance(array, torch.Tensor) and array.is_cuda for array in packed.arrays)


def as_tensor(array: Array) -> torch.Tensor:
    """Return a bf16 tensor; one of an array is on the CPU and shares its memory: never write to it."""
    return array if isinstance(array, torch.Tensor) else tensor_of(array).view(torch.bfloat16)


def unpack(packed: Packed) -> Features:
    """Return bf16 tensors, on the CPU if they came as arrays, whose memory they then share: never write to them."""
    return Features(
        None if packed.summary is None else as_tensor(packed.summary),
        None if packed.spatial is None else as_tensor(packed.spatial),
        {name: as_tensor(value) for name, value in packed.named.items()},
    )


def unpack_for(packed: Packed, grid: tuple[int, int]) -> Features:
    """Return what :func:`unpack` does, of an answer to several students for the one whose losses compare ``grid``."""
    features = unpack(packed)
    named = {name: value for name, value in features.named.items() if not name.startswith(COARSER)}
    return Features(features.summary, features.named.get(coarser_map(grid), features.spatial), named)


def has_nixl() -> bool:
    """Return whether this process can load NIXL, Ray's transport between any two devices."""
    try:
        import nixl  # noqa: F401
    except ImportError:  # also if it is installed for another CUDA
        return False
    return True
