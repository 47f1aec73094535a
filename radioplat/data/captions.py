"""Captions, read from their sidecars when somebody asks; the index only knows where they are."""

from __future__ import annotations

import json
from collections.abc import Sequence

import numpy as np

from radioplat.data.index.shard_index import ShardIndex, gone
from radioplat.data.storage.files import HandlePool


class CaptionReader:
    """Reads captions by offset; thread-safe, and pickles without its open files.

    Args:
        index: the run's copy.
    """

    def __init__(self, index: ShardIndex) -> None:
        self._index, self._files = index, HandlePool()

    def read(self, rows: Sequence[int] | np.ndarray) -> list[str | None]:
        """The caption of each of ``rows``, None where there is none.

        Raises:
            DataError: a shard changed since it was indexed, or is gone.
        """
        ids = np.asarray(rows, np.int64)
        offsets, lengths = self._index.caption_offset[ids], self._index.caption_length[ids]
        places = zip(self._index.shard[ids].tolist(), offsets.tolist(), lengths.tolist(), strict=True)
        return [self._caption(*place) if place[1] >= 0 else None for place in places]

    def _caption(self, shard: int, offset: int, length: int) -> str:
        path = self._index.shard_paths[shard]
        try:
            handle = self._files.get(path, lambda opened: self._index.check_shard(shard, opened.state))
            return json.loads(handle.read(offset, length))["caption"]
        except OSError as error:
            raise gone(path, error) from None
