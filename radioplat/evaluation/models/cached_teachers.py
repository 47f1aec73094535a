"""Teachers of an evaluation, by way of ``feature_cache`` where it is on: the evaluations of a sweep ask them once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch

from radioplat.evaluation.models.encoder import Encoder, teacher_encoder
from radioplat.models.features import Features
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.spec.schema.root import Spec
from radioplat.teachers.base.teacher import FrozenTeacher, compute_dtype
from radioplat.teachers.cache.file import Row
from radioplat.teachers.cache.key import feature_key, sample_digest, teacher_key, weights_hash
from radioplat.teachers.cache.store import FeatureStore
from radioplat.teachers.serving.packed_features import Packed
from radioplat.teachers.serving.transport import pack, to_host, unpack

_OWN_GRID = (0, 0)  # a map as the teacher has it, of whatever size
_PURPOSE = b"evaluation: summary and spatial"  # beside a run's answers, which hold what its losses want
_ANYWHERE = np.zeros(4, np.int64)  # the pixels alone tell images apart


@contextlib.contextmanager
def teacher_encoders(spec: Spec, teachers: list[ResolvedTeacher], device: str) -> Iterator[dict[str, Encoder]]:
    """An encoder for each teacher, by name; on leaving, what the cache holds back is written.

    Raises:
        SpecError, WeightsError: the cache's folder cannot be used, or weights cannot be read.
    """
    encoders = {t.name: teacher_encoder(FrozenTeacher(t, device)) for t in teachers}
    config = spec.feature_cache
    cached = [t for t in teachers if t.service.cache] if config.dir else []
    if not config.dir or not cached:
        yield encoders
        return
    store = FeatureStore(config.dir, config.max_bytes)
    try:
        keys = {t.name: evaluation_key(t, device) for t in cached}
        yield encoders | {name: remembering(encoders[name], key, store) for name, key in keys.items()}
    finally:
        store.close()


def evaluation_key(teacher: ResolvedTeacher, device: str) -> bytes:
    """32 bytes that stand for all that turns pixels into this teacher's answer in an evaluation."""
    precision = str(compute_dtype(teacher.service.precision, torch.device(device))).removeprefix("torch.")
    return feature_key(teacher_key(teacher, _OWN_GRID, precision, weights_hash(teacher)), _PURPOSE)


def remembering(encode: Encoder, key: bytes, store: FeatureStore) -> Encoder:
    """``encode`` for images that ``store`` does not know yet. Teachers answer in bf16, which is kept bit for bit."""

    def through_store(images: torch.Tensor) -> Features:
        """uint8 ``[B, 3, H, W]`` to fp32 features; only what the store lacks is encoded, in one batch."""
        keys = [feature_key(key, sample_digest(pixels, _ANYWHERE)) for pixels in images.numpy()]
        rows = store.get(keys)
        missing = [i for i, row in enumerate(rows) if row is None]
        if missing:
            for i, row in zip(missing, _answers(encode(images[missing])), strict=True):
                rows[i] = row
                if all(_finite(array) for array in row.values()):
                    store.put(keys[i], row)
        return unpack(Packed(_stacked(rows, "summary"), _stacked(rows, "spatial"), {}, 0.0)).map(lambda t: t.float())

    return through_store


def _answers(features: Features) -> list[Row]:
    """Features of each image apart, as bits; copies, so that one does not keep all in memory."""
    packed = to_host(pack(features, 0.0))
    parts = {"summary": packed.summary, "spatial": packed.spatial}
    return [{n: np.array(a[i]) for n, a in parts.items() if a is not None} for i in range(len(packed))]


def _stacked(rows: list[Row | None], name: str) -> np.ndarray | None:
    found = [row[name] for row in rows if row is not None and name in row]
    return np.stack(found) if found else None


def _finite(bits: np.ndarray) -> bool:
    return bool(torch.from_numpy(bits).view(torch.bfloat16).isfinite().all())
