"""A Parquet file with a row for each image: ``predictions.parquet``, and the ``out`` of embed and predict."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from radioplat.evaluation.inference.infer import Prediction
from radioplat.evaluation.inference.inference_model import InferenceModel

_ROW_GROUP = 2**25  # bytes in memory before they are written
_FLOATS, _NUMBERS = pa.list_(pa.float32()), pa.list_(pa.int32())
_IMAGE = {"image": pa.string(), "error": pa.string(), "width": pa.int32(), "height": pa.int32()}
_CLASSES = {"labels": _NUMBERS, "class_names": pa.list_(pa.string()), "scores": _FLOATS}


def columns_of(model: InferenceModel, maps: bool, *, features: bool = True, classes: bool = True) -> pa.Schema:
    """Return the columns of the table: those of what ``model`` computes.

    Args:
        maps: with ``spatial`` and ``spatial_shape``.
        features: with ``summary`` (and maps) of a student.
        classes: with boxes, labels and scores of a detector or a classifier.
    """
    columns = dict(_IMAGE)
    if model.encode is not None and features:
        columns["summary"] = _FLOATS
        columns |= {"spatial": _FLOATS, "spatial_shape": _NUMBERS} if maps else {}
    if model.detect is not None and classes:
        columns["boxes"] = pa.list_(pa.list_(pa.float32(), 4))
    if classes and (model.detect is not None or model.classifies):
        columns |= _CLASSES
    return pa.schema(list(columns.items()))


class TableWriter:
    """Writes predictions to a Parquet file; values that do not exist are null."""

    def __init__(self, path: Path, columns: pa.Schema) -> None:
        self._columns, self._waiting = columns, list[pa.Table]()
        self._writer = pq.ParquetWriter(path, columns)

    def add(self, rows: Sequence[Prediction]) -> None:
        """Append rows."""
        plain = [_plain(row, self._columns.names) for row in rows]
        self._waiting.append(pa.Table.from_pylist(plain, self._columns))
        if sum(table.nbytes for table in self._waiting) > _ROW_GROUP:
            self._write()

    def close(self) -> None:
        """Write what is left, and the end of the file."""
        if self._waiting:
            self._write()
        self._writer.close()

    def _write(self) -> None:
        self._writer.write_table(pa.concat_tables(self._waiting).combine_chunks())
        self._waiting.clear()


def _plain(row: Prediction, names: Sequence[str]) -> dict[str, object]:
    values: dict[str, object] = {"image": row.name, "error": row.error or None}
    if row.error:
        return values
    values |= {"width": row.width, "height": row.height, "summary": row.summary, "scores": row.scores}
    values["class_names"] = list(row.class_names) or None
    values["labels"] = None if row.labels is None else row.labels.astype(np.int32)
    values["boxes"] = None if row.boxes is None else list(row.boxes)
    if "spatial" in names and row.spatial is not None:
        values |= {"spatial": row.spatial.ravel(), "spatial_shape": list(row.spatial.shape)}
    return {name: values[name] for name in values if name in names}
