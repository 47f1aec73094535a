"""Keys of cached features: everything that their values depend on.

A key is made of two digests. The teacher's digest covers its weights, code, number format and grid. The sample's digest
covers its location, the version of its shard, and the pixels that the teacher would see: crop, flip, size, colour and
any other change of a view change the pixels, so features of another view can never be returned.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.metadata
import json
from pathlib import Path

import numpy as np

from radioplat.common.hashing import file_hash
from radioplat.data.index.shard_index import ShardIndex
from radioplat.errors import WeightsError
from radioplat.models.student.checkpoint import HEADS_FILE, STUDENT_FILE, is_checkpoint
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.teachers.adapters.adapter import weights_field, weights_of
from radioplat.teachers.adapters.registry import adapter_class, own_code_hash
from radioplat.teachers.cache.file import KEY_BYTES
from radioplat.teachers.upsamplers.registry import upsampler_field, upsampler_module

# Increased when the computation from pixels to features changes: normalisation, folding, upsampling, the resize to the
# loss grid.
_PATH = "1: fold_batch_norm, to_grid averages in fp32, bf16"


def weights_hash(teacher: ResolvedTeacher) -> str:
    """Return sha256 (hex) of the weights of all members of an ensemble, and of the upsampler if there is one.

    Of a file it is that of the bytes, of a folder that of its files' names and bytes.

    Raises:
        WeightsError: they cannot be read.
    """
    each = [_path_hash(weights_of(member), weights_field(member)) for member in teacher.members]
    own = hashlib.sha256(json.dumps(each).encode()).hexdigest() if teacher.ensemble else each[0]
    if not teacher.upsampler_checkpoint:
        return own
    both = [own, _path_hash(Path(teacher.upsampler_checkpoint), upsampler_field(teacher))]
    return hashlib.sha256(json.dumps(both).encode()).hexdigest()


def teacher_key(teacher: ResolvedTeacher, grid: tuple[int, int], precision: str, weights: str) -> bytes:
    """Return 32 bytes that identify everything that determines this teacher's features, given the pixels.

    Args:
        grid: the loss grid, rows and columns.
        precision: the dtype that the teacher computes in.
        weights: from :func:`weights_hash`.

    Raises:
        SpecError: a user's own class cannot be imported here.
    """
    adapter, upsampler = adapter_class(teacher), upsampler_module() if teacher.upsampler_checkpoint else None
    backbone = dataclasses.asdict(teacher.backbone) | {"pretrained_backbone_path": None}  # `weights` hashes its content
    libraries = ("timm", "transformers") if adapter.kind in ("hf", "detector") else ("timm",)
    parts = {
        "path": _PATH,
        "weights": weights,
        "adapter": [adapter.kind, adapter.version, own_code_hash(teacher)],
        "libraries": {name: importlib.metadata.version(name) for name in libraries},
        "backbone": backbone,
        "size": teacher.input_size,
        "patch": teacher.patch_size,
        "norm": [list(teacher.norm_mean), list(teacher.norm_std)],
        "grid": list(grid),
        "precision": precision,
        # With random sizes the teacher enlarges its view itself: the same pixels, other features.
        "upsampler": upsampler and [upsampler.KIND, upsampler.VERSION, teacher.view_size],
        "wanted": sorted(teacher.wanted),
    }
    return _digest(json.dumps(parts, sort_keys=True, default=str).encode())


class SamplePlaces:
    """Locations of samples: the part of a key that identifies an index row and the version of its shard.

    A row's number changes when a source is added before it; its offset in a shard of the same size and mtime does not.
    """

    def __init__(self, index: ShardIndex) -> None:
        self._index = index
        self._states = np.stack([index.shards[name].to_numpy() for name in ("size", "mtime_ns")], 1)

    def __call__(self, rows: np.ndarray) -> np.ndarray:
        """Return int64 ``[B, 4]`` of sample ids ``[B]``: size and mtime of the shard, offset and length inside it,
        bytes."""
        index = self._index
        return np.concatenate(
            [self._states[index.shard[rows]], np.stack([index.offset[rows], index.length[rows]], 1)], 1
        )


def sample_digest(pixels: np.ndarray, place: np.ndarray) -> bytes:
    """Return 32 bytes that identify one sample as a teacher sees it.

    Args:
        pixels: uint8 ``[3, H, W]``.
        place: int64 ``[4]`` from :class:`SamplePlaces`.
    """
    head = np.array([*place, *pixels.shape], np.int64)
    return _digest(head.tobytes(), np.ascontiguousarray(pixels).data)


def feature_key(teacher: bytes, sample: bytes) -> bytes:
    """Return the key of one teacher's features of one sample, 32 bytes."""
    return _digest(teacher, sample)


def _digest(*parts: bytes | memoryview) -> bytes:
    digest = hashlib.blake2b(digest_size=KEY_BYTES)
    for part in parts:
        digest.update(part)
    return digest.digest()


def _path_hash(path: Path, where: str) -> str:
    try:
        if path.is_dir():
            ours = {STUDENT_FILE, HEADS_FILE} if is_checkpoint(path) else None  # without the optimizer state
            files = sorted(p for p in path.rglob("*") if p.is_file() and (ours is None or p.name in ours))
            parts = [(str(p.relative_to(path)), file_hash(p)) for p in files]
            return hashlib.sha256(json.dumps(parts).encode()).hexdigest()
        return file_hash(path)
    except OSError as error:
        raise WeightsError(f"{path} cannot be read: {error.strerror}", where=where) from None
