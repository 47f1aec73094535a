"""Safetensors files that are hashed while they are written.

The library's own writer copies every tensor first, and a checksum needs a second read of the file. This one does
neither, and releases the GIL while it writes.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import BinaryIO

import torch

# Names of the format (https://github.com/huggingface/safetensors, README, "Format").
_DTYPES = {
    torch.float64: "F64",
    torch.float32: "F32",
    torch.float16: "F16",
    torch.bfloat16: "BF16",
    torch.int64: "I64",
    torch.int32: "I32",
    torch.int16: "I16",
    torch.int8: "I8",
    torch.uint8: "U8",
    torch.bool: "BOOL",
}
_PIECE = 2**24  # bytes that are hashed and written at a time


def write_tensors(
    file: BinaryIO, tensors: Mapping[str, torch.Tensor], metadata: Mapping[str, str] | None = None
) -> str:
    """Write ``tensors`` (of any device and strides) as one safetensors file.

    Returns:
        The SHA-256 of the file, in hexadecimal.

    Raises:
        KeyError: a dtype that is not supported here.
    """
    # The widest dtypes first: then each tensor is aligned to its element size.
    ordered = sorted(tensors.items(), key=lambda item: (-item[1].element_size(), item[0]))
    header: dict[str, object] = {"__metadata__": dict(metadata)} if metadata else {}
    stop = 0
    for name, tensor in ordered:
        start, stop = stop, stop + tensor.numel() * tensor.element_size()
        header[name] = {"dtype": _DTYPES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [start, stop]}
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    digest = hashlib.sha256()

    def put(data: memoryview | bytes) -> None:
        """Hash and write."""
        digest.update(data)
        file.write(data)

    put(len(text).to_bytes(8, "little") + text)
    for _, tensor in ordered:
        flat = tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8)
        data = memoryview(flat.numpy())
        for start in range(0, len(data), _PIECE):
            put(data[start : start + _PIECE])
    return digest.hexdigest()
