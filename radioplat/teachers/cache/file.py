"""One file of cached features: a safetensors file, written once, read a sample at a time.

It contains ``key`` (32 bytes as int64 ``[N, 4]``), ``crc32`` (int64 ``[N]``, of a sample's features) and, for each
output, ``feature.<name>`` (bf16 ``[N, ...]``). All samples of a file have the same outputs in the same shapes.
"""

from __future__ import annotations

import json
import math
import zlib
from collections.abc import Sequence

import numpy as np
import safetensors.torch
import torch

from radioplat import __version__
from radioplat.data.storage.files import HandlePool, RangeFile
from radioplat.tracking.record_versions import newer_record

SUFFIX = ".features.safetensors"
KEY_BYTES = 32
Row = dict[str, np.ndarray]  # features of one sample: bf16 bits as uint16, by the name of the output

_FORMAT, _SCHEMA = "radioplat features", 1  # in the metadata: "radioplat features 1"
_FEATURE = "feature."
_HEAD = 1 << 16  # bytes of the first read: the header, usually with all keys


def layout(row: Row) -> tuple:
    """Return names and shapes of the outputs: rows of one layout can share a file."""
    return tuple(sorted((name, array.shape) for name, array in row.items()))


def encode(keys: Sequence[bytes], rows: Sequence[Row]) -> bytes:
    """Return the bytes of a file; at least one row, all of one layout."""
    tensors = {
        "key": torch.from_numpy(np.frombuffer(b"".join(keys), np.int64).reshape(-1, KEY_BYTES // 8).copy()),
        "crc32": torch.tensor([_checksum(row) for row in rows]),
    }
    for name in rows[0]:
        bits = np.stack([row[name] for row in rows])
        tensors[_FEATURE + name] = torch.from_numpy(bits).view(torch.bfloat16)
    return safetensors.torch.save(tensors, {"format": f"{_FORMAT} {_SCHEMA}", "radioplat": __version__})


class FeatureFile:
    """An existing file: its keys in memory, its features on disk.

    Args:
        path: local, or ``s3://...``, ``gs://...``.

    Attributes:
        keys: of its rows, in their order; cleared by the store once copied.

    Raises:
        OSError: it cannot be read.
        ValueError: it is incomplete, or was not written by :func:`encode`.
        NewerRecord: a newer version wrote it.
    """

    def __init__(self, path: str) -> None:
        file = RangeFile(path)
        self.path, self._size = path, file.state.size
        head = file.read(0, _HEAD)
        length = int.from_bytes(head[:8], "little")
        if not 2 <= length <= self._size - 8:
            raise ValueError("no safetensors file")
        header = json.loads(head[8 : 8 + length] if 8 + length <= len(head) else file.read(8, length))
        try:
            about = header.pop("__metadata__", None) or {}
            kind, _, schema = about.get("format", "").rpartition(" ")
            if kind != _FORMAT or not schema.isdecimal() or int(schema) < _SCHEMA:
                raise ValueError("no features of this format")
            if int(schema) > _SCHEMA:
                raise newer_record(path, "its content", schema, _SCHEMA, about.get("radioplat", ""))
            begin = 8 + length
            spans = {name: tuple(begin + at for at in tensor["data_offsets"]) for name, tensor in header.items()}
            if max(stop for _, stop in spans.values()) != self._size:
                raise ValueError("torn")

            def numbers(name: str) -> np.ndarray:
                """Read a tensor of int64."""
                start, stop = spans[name]
                data = head[start:stop] if stop <= len(head) else file.read(start, stop - start)
                return np.frombuffer(data, np.int64)

            keys = numbers("key").tobytes()
            self._checksums = numbers("crc32")
            self.keys = [keys[i : i + KEY_BYTES] for i in range(0, len(keys), KEY_BYTES)]
            self._outputs: list[tuple[str, int, tuple[int, ...]]] = []  # name, offset, shape of a row
            for name, tensor in header.items():
                if name.startswith(_FEATURE):
                    rows, *shape = tensor["shape"]
                    if rows != len(self.keys) or tensor["dtype"] != "BF16":
                        raise ValueError(f"{name} does not fit")
                    self._outputs.append((name.removeprefix(_FEATURE), spans[name][0], tuple(shape)))
            if len(self._checksums) != len(self.keys):
                raise ValueError("crc32 does not fit")
        except (KeyError, TypeError, AttributeError, IndexError) as error:
            raise ValueError(f"not a file of features: {error!r}") from None

    def read(self, row: int, pool: HandlePool) -> Row:
        """Read the features of a row.

        Raises:
            OSError: the file was removed or cannot be read.
            ValueError: its checksum differs.
        """
        handle = pool.get(self.path, self._same)
        features = {}
        for name, start, shape in self._outputs:
            size = 2 * math.prod(shape)
            features[name] = np.frombuffer(handle.read(start + row * size, size), np.uint16).reshape(shape)
        if _checksum(features) != self._checksums[row]:
            raise ValueError("the features are damaged")
        return features

    def _same(self, file: RangeFile) -> None:
        if file.state.size != self._size:
            raise ValueError("the file was written to since")


def _checksum(row: Row) -> int:
    value = 0
    for name in sorted(row):
        value = zlib.crc32(np.ascontiguousarray(row[name]).data, value)
    return value
