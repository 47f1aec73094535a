"""Teachers of an evaluation with ``feature_cache``, so that a sweep computes their features once."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import numpy as np
import torch

from radioplat.evaluation.models.evaluated_model import Encoder, teacher_encoder
from radioplat.models.features import Features
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.spec.schema.root import Spec
from radioplat.teachers.base.teacher import FrozenTeacher, compute_dtype
from radioplat.teachers.cache.caching_client import is_finite, rows_of
from radioplat.teachers.cache.key import feature_key, sample_digest, teacher_key, weights_hash
from radioplat.teachers.cache.store import FeatureStore
from radioplat.teachers.serving.packed_features import Packed
from radioplat.teachers.serving.transport import pack, to_host, unpack

_OWN_GRID = (0, 0)  # a map at the teacher's own grid
_PURPOSE = b"evaluation: summary and spatial"  # separate from cached features of runs, which have other outputs
_ANYWHERE = np.zeros(4, np.int64)  # images are identified by their pixels alone


@contextlib.contextmanager
def teacher_encoders(spec: Spec, teachers: list[ResolvedTeacher], device: str) -> Iterator[dict[str, Encoder]]:
    """Yield an encoder for each teacher, by name; at the end pending features are written to the cache.

    Raises:
        SpecError, WeightsError: the cache's folder cannot be used, or weights cannot be read.
    """
    encoders = {t.name: teacher_encoder(FrozenTeacher(t, device)) for t in teachers}
    config = spec.feature_cache
    folder = config.folder
    cached = [t for t in teachers if t.service.cache] if folder else []
    if not folder or not cached:
        yield encoders
        return
    store = FeatureStore(folder, config.max_bytes, write_seconds=config.write_interval_s)
    try:
        keys = {t.name: evaluation_key(t, device) for t in cached}
        yield encoders | {name: remembering(encoders[name], key, store, device) for name, key in keys.items()}
    finally:
        store.close()


def evaluation_key(teacher: ResolvedTeacher, device: str) -> bytes:
    """Return a key of 32 bytes of all that determines this teacher's features in an evaluation, except the pixels."""
    precision = str(compute_dtype(teacher.service.precision, torch.device(device))).removeprefix("torch.")
    return feature_key(teacher_key(teacher, _OWN_GRID, precision, weights_hash(teacher)), _PURPOSE)


def remembering(encode: Encoder, key: bytes, store: FeatureStore, device: str = "cpu") -> Encoder:
    """Return ``encode`` with a cache: known features are read from ``store``, new ones are written, exact in bf16.

    Features are returned on ``device``.
    """

    def through_store(images: torch.Tensor) -> Features:
        """Encode uint8 ``[B, 3, H, W]`` to fp32 features; images that the store lacks are encoded in one batch."""
        keys = [feature_key(key, sample_digest(pixels, _ANYWHERE)) for pixels in images.numpy()]
        rows = store.get(keys)
        missing = [i for i, row in enumerate(rows) if row is None]
        if missing:
            fresh = rows_of(to_host(pack(encode(images[missing]), 0.0)))
            finite = {}
            for place, i in enumerate(missing):
                # Copies, so that one row does not keep the batch in memory.
                rows[i] = row = {name: array[place].copy() for name, array in fresh.items()}
                if all(is_finite(array) for array in row.values()):
                    finite[keys[i]] = row
            store.put(finite)
        whole = {name: np.stack([row[name] for row in rows if row]) for name in rows[0] or ()}
        return unpack(Packed(whole.get("summary"), whole.get("spatial"), {}, 0.0)).map(lambda t: t.to(device).float())

    return through_store
