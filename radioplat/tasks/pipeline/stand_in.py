"""Checkpoints of students that no run has trained yet: their structure, with zeros in place of weights.

The nodes that read such a student are checked with it before anything starts: widths, sizes, heads. The files are
sparse, so that they take no space on the disk.
"""

from __future__ import annotations

import json
from pathlib import Path

import torch

from radioplat.design.student import build_on_meta
from radioplat.models.student.architecture import StudentArchitecture
from radioplat.models.student.checkpoint import STUDENT

_NAMES = {torch.float32: "F32", torch.int64: "I64", torch.int32: "I32", torch.uint8: "U8", torch.bool: "BOOL"}


def write_stand_in(architecture: StudentArchitecture, folder: Path) -> Path:
    """Write a student's files into ``folder``; return it."""
    folder.mkdir(parents=True, exist_ok=True)
    student = build_on_meta(architecture)
    for name, (tensors, metadata) in STUDENT.files(architecture, student.state_dict()).items():
        header: dict[str, object] = {"__metadata__": metadata}
        end = 0
        for tensor_name, tensor in tensors.items():
            begin, end = end, end + tensor.numel() * tensor.element_size()
            layout = {"dtype": _NAMES[tensor.dtype], "shape": list(tensor.shape), "data_offsets": [begin, end]}
            header[tensor_name] = layout
        text = json.dumps(header).encode()
        text += b" " * (-len(text) % 8)
        with (folder / name).open("wb") as file:
            file.write(len(text).to_bytes(8, "little") + text)
            file.truncate(8 + len(text) + end)
    return folder
