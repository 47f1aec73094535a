"""A teacher with a feature cache: micro-batches whose features are all cached are not computed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

import numpy as np

from radioplat.data.batch import Batch
from radioplat.teachers.cache.file import Row
from radioplat.teachers.cache.key import feature_key, sample_digest
from radioplat.teachers.cache.store import FeatureStore
from radioplat.teachers.serving.client import Held, Pending, TeacherClient
from radioplat.teachers.serving.packed_features import Packed
from radioplat.teachers.serving.transport import is_on_gpu, to_host

_EXPONENT = 0x7F80  # exponent bits of bf16; all of them set: infinity or NaN


@dataclass
class _Seen:
    """A view shared by cached teachers: each sample is hashed once, and a view that misses completely is sent once.

    Attributes:
        pixels: uint8 ``[B, 3, H, W]``.
        batch: the micro-batch that it belongs to, or None.
        sent: results of :meth:`TeacherClient.share` for all of it, by the kind of client.
    """

    pixels: np.ndarray
    batch: Batch | None
    places: Callable[[np.ndarray], np.ndarray]
    sent: dict[type, Any] = field(default_factory=dict)

    @cached_property
    def digests(self) -> dict[int, bytes]:
        """Return the digest of each sample with weight, by row; samples without weight are not cached."""
        if self.batch is None:
            return {}
        rows = np.flatnonzero(self.batch.weight > 0)
        places = self.places(self.batch.sample_id[rows])
        return {int(i): sample_digest(self.pixels[i], place) for i, place in zip(rows, places, strict=True)}


class CachedTeacher:
    """A teacher's client that looks features up in a :class:`FeatureStore` before it requests them.

    A micro-batch that lacks any sample is requested whole. Of fewer images at once, the last bits of a teacher's
    features can differ, and a run that was interrupted would not continue exactly. So features are the same, bit for
    bit, with and without the cache.

    Args:
        key: from :func:`radioplat.teachers.cache.key.teacher_key`.
        places: from sample ids ``[B]`` to int64 ``[B, 4]``, see :class:`radioplat.teachers.cache.key.SamplePlaces`.
    """

    def __init__(
        self, client: TeacherClient, key: bytes, store: FeatureStore, places: Callable[[np.ndarray], np.ndarray]
    ) -> None:
        self.name = client.name
        self._client, self._key, self._store, self._places = client, key, store, places

    def precision(self) -> str:
        """Return the dtype that the teacher computes in."""
        return self._client.precision()

    def held(self) -> Held:
        """Return the current resources of the teacher."""
        return self._client.held()

    def rest(self) -> None:
        """Free the resources of the teacher."""
        self._client.rest()

    def wake(self) -> None:
        """Let the teacher prepare for requests."""
        self._client.wake()

    def share(self, pixels: np.ndarray, batch: Batch | None = None) -> _Seen:
        """Return the view without sending it; without ``batch`` the cache is not used for it."""
        return _Seen(pixels, batch, self._places)

    def submit(self, shared: _Seen, micro_batch: int) -> Pending:
        """Look up every sample, and request all if any is missing; the result's ``cached`` counts hits and misses."""
        keys = {row: feature_key(self._key, digest) for row, digest in shared.digests.items()}
        looked_up = zip(keys, self._store.get(list(keys.values())), strict=True)
        hits = {row: features for row, features in looked_up if features is not None}
        if hits and len(hits) == len(keys):
            packed = _join(len(shared.pixels), hits)
            return lambda: packed
        pending = self._ask(shared, micro_batch)

        def answer() -> Packed:
            """Wait for the teacher, and store what the cache lacks."""
            fresh = pending()
            in_memory = to_host(fresh)
            rows = rows_of(in_memory)
            # Copies: a slice would keep the complete result in memory, or in Ray's object store.
            self._store.put(
                {
                    keys[row]: {name: array[row].copy() for name, array in rows.items()}
                    for row in sorted(keys.keys() - hits.keys())
                    if all(is_finite(array[row]) for array in rows.values())
                }
            )
            # What is on a GPU stays there: the student needs it there.
            return dataclasses.replace(fresh if is_on_gpu(fresh) else in_memory, cached=(0, len(keys)))

        return functools.cache(answer)  # a batch used for statistics is fetched twice

    def _ask(self, shared: _Seen, micro_batch: int) -> Pending:
        kind = type(self._client)
        if kind not in shared.sent:
            shared.sent[kind] = self._client.share(shared.pixels)
        return self._client.submit(shared.sent[kind], micro_batch)


def rows_of(packed: Packed) -> Row:
    """Return all tensors of a result by one name each, ``[B, ...]``."""
    parts = {"summary": packed.summary, "spatial": packed.spatial}
    parts |= {f"named.{name}": array for name, array in packed.named.items()}
    return {name: array for name, array in parts.items() if array is not None}


def _join(total: int, hits: dict[int, Row]) -> Packed:
    """Return the cached features of a micro-batch; zeros for a sample without weight."""
    whole = {}
    for name, first in next(iter(hits.values())).items():
        whole[name] = np.zeros((total, *first.shape), np.uint16)
        for row, features in hits.items():
            whole[name][row] = features[name]
    named = {name.removeprefix("named."): array for name, array in whole.items() if name.startswith("named.")}
    return Packed(whole.get("summary"), whole.get("spatial"), named, 0.0, (len(hits), 0))


def is_finite(bits: np.ndarray) -> bool:
    """Return whether no number of bf16 ``bits`` is infinite or NaN."""
    return not ((bits & _EXPONENT) == _EXPONENT).any()
