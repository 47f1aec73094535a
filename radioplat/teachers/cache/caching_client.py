"""A teacher that remembers: asked only for samples whose features nobody has kept."""

from __future__ import annotations

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
from radioplat.teachers.serving.transport import to_host

_EXPONENT = 0x7F80  # of a bf16 number; all ones: infinite or not a number


@dataclass
class _Seen:
    """A view that cached teachers look at together: hashed once, and sent once where all of it has to be.

    Attributes:
        pixels: uint8 ``[B, 3, H, W]``.
        batch: the micro-batch that it is of, or None.
        sent: what :meth:`TeacherClient.share` made of all of it, by the kind of client.
    """

    pixels: np.ndarray
    batch: Batch | None
    places: Callable[[np.ndarray], np.ndarray]
    sent: dict[type, Any] = field(default_factory=dict)

    @cached_property
    def digests(self) -> dict[int, bytes]:
        """By row, for every sample that has a weight: one without shows nothing, or nothing worth keeping."""
        if self.batch is None:
            return {}
        rows = np.flatnonzero(self.batch.weight > 0)
        places = self.places(self.batch.sample_id[rows])
        return {int(i): sample_digest(self.pixels[i], place) for i, place in zip(rows, places, strict=True)}


class CachedTeacher:
    """Any :class:`~radioplat.teachers.serving.client.TeacherClient` behind a :class:`FeatureStore`.

    Of a micro-batch the teacher is asked only for samples that miss, for none where all hit. A hit is, bit for bit,
    what the teacher answered once; how many images it is asked at once may change its own last bits.

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
        """See :class:`~radioplat.teachers.serving.client.TeacherClient`."""
        return self._client.precision()

    def held(self) -> Held:
        """See :class:`~radioplat.teachers.serving.client.TeacherClient`."""
        return self._client.held()

    def share(self, pixels: np.ndarray, batch: Batch | None = None) -> _Seen:
        """Nothing is sent yet; without ``batch`` nothing is looked up either."""
        return _Seen(pixels, batch, self._places)

    def submit(self, shared: _Seen, micro_batch: int) -> Pending:
        """Look every sample up, and ask for the rest; the answer's ``cached`` tells hits and misses."""
        keys = {row: feature_key(self._key, digest) for row, digest in shared.digests.items()}
        found = zip(keys, self._store.get(list(keys.values())), strict=True)
        hits = {row: features for row, features in found if features is not None}
        total = len(shared.pixels)
        if hits and len(hits) == len(keys):
            packed = _merge(total, hits, None, [], (len(hits), 0))
            return lambda: packed
        asked = [row for row in range(total) if row not in hits]
        pending = self._ask(shared, asked, micro_batch)

        def answer() -> Packed:
            fresh = to_host(pending())
            rows = _rows(fresh)
            for place, row in enumerate(asked):
                if row in keys and all(_finite(array[place]) for array in rows.values()):
                    # A copy: a slice would keep the whole answer in memory, or in Ray's object store.
                    self._store.put(keys[row], {name: array[place].copy() for name, array in rows.items()})
            return _merge(total, hits, fresh, asked, (len(hits), len(keys) - len(hits)))

        return functools.cache(answer)  # a batch that statistics are taken of is asked for twice

    def _ask(self, shared: _Seen, rows: list[int], micro_batch: int) -> Pending:
        if len(rows) < len(shared.pixels):
            return self._client.submit(self._client.share(shared.pixels[rows]), micro_batch)
        kind = type(self._client)
        if kind not in shared.sent:
            shared.sent[kind] = self._client.share(shared.pixels)
        return self._client.submit(shared.sent[kind], micro_batch)


def _rows(packed: Packed) -> Row:
    """Everything in an answer by one name each, ``[B, ...]``."""
    parts = {"summary": packed.summary, "spatial": packed.spatial}
    parts |= {f"named.{name}": array for name, array in packed.named.items()}
    return {name: array for name, array in parts.items() if array is not None}


def _merge(total: int, hits: dict[int, Row], fresh: Packed | None, asked: list[int], cached: tuple[int, int]) -> Packed:
    """Kept and fresh features in the order of the micro-batch; zeros for a sample that is neither (of no weight)."""
    seconds = fresh.seconds if fresh else 0.0
    if fresh and not hits:
        return Packed(fresh.summary, fresh.spatial, fresh.named, seconds, cached)
    new = _rows(fresh) if fresh else {}
    whole = {}
    for name, first in next(iter(hits.values())).items():
        whole[name] = np.zeros((total, *first.shape), np.uint16)
        for row, features in hits.items():
            whole[name][row] = features[name]
        if new:
            whole[name][asked] = new[name]
    named = {name.removeprefix("named."): array for name, array in whole.items() if name.startswith("named.")}
    return Packed(whole.get("summary"), whole.get("spatial"), named, seconds, cached)


def _finite(bits: np.ndarray) -> bool:
    return not ((bits & _EXPONENT) == _EXPONENT).any()
