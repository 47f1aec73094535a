"""Convert batches to Arrow tables of one row, which Ray Data cannot split, and back without a copy.

The schema does not depend on the views, because views change from micro-batch to micro-batch.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pyarrow as pa

from radioplat.data.batch import Batch, View

_BLOBS = pa.list_(pa.large_binary())
SCHEMA = pa.schema(
    [
        ("micro_batch", pa.int64()),
        ("sample_id", pa.list_(pa.int64())),
        ("position", pa.list_(pa.int64())),
        ("weight", pa.list_(pa.float32())),
        ("label", pa.list_(pa.int64())),
        ("fault_id", pa.list_(pa.int64())),
        ("fault_reason", pa.list_(pa.string())),
        ("view", pa.list_(pa.string())),
        ("height", pa.list_(pa.int32())),
        ("width", pa.list_(pa.int32())),
        ("pixels", _BLOBS),  # uint8 [B, 3, H, W]
        ("homography", _BLOBS),  # float32 [B, 3, 3]
        ("valid", _BLOBS),  # bool [B, H, W], or null
        ("boxes", _BLOBS),  # float32 [B, M, 6], or null
    ]
)


def batch_to_table(batch: Batch) -> pa.Table:
    """Return ``batch`` as one row of :data:`SCHEMA`."""
    views = list(batch.views.values())
    columns = {
        "micro_batch": pa.array([batch.micro_batch], pa.int64()),
        "sample_id": _numbers(batch.sample_id, np.int64),
        "position": _numbers(batch.position, np.int64),
        "weight": _numbers(batch.weight, np.float32),
        "label": _numbers(batch.label, np.int64),
        "fault_id": [list(batch.faults)],
        "fault_reason": [list(batch.faults.values())],
        "view": [list(batch.views)],
        "height": [[v.pixels.shape[2] for v in views]],
        "width": [[v.pixels.shape[3] for v in views]],
        "pixels": _blobs([v.pixels for v in views], np.uint8),
        "homography": _blobs([v.homography for v in views], np.float32),
        "valid": _blobs([v.valid for v in views], np.bool_),
        "boxes": _blobs([v.boxes for v in views], np.float32),
    }
    return pa.table(columns, schema=SCHEMA)


def table_to_batch(table: pa.Table) -> Batch:
    """Return the batch of a one-row table; its arrays are read-only views of the table's memory.

    Raises:
        ValueError: the table has another number of rows.
    """
    if table.num_rows != 1:
        raise ValueError(f"a micro-batch is one row, not {table.num_rows}")
    row = {name: table.column(name)[0] for name in SCHEMA.names}
    ids = row["sample_id"].values.to_numpy()
    count = len(ids)
    views = {}
    for i, name in enumerate(row["view"].as_py()):
        height, width = row["height"][i].as_py(), row["width"][i].as_py()
        valid, boxes = row["valid"].values[i], row["boxes"].values[i]
        views[name] = View(
            _array(row["pixels"].values[i], np.uint8, (count, 3, height, width)),
            _array(row["homography"].values[i], np.float32, (count, 3, 3)),
            _array(valid, np.bool_, (count, height, width)) if valid.is_valid else None,
            _boxes(boxes, count) if boxes.is_valid else None,
        )
    return Batch(
        row["micro_batch"].as_py(),
        views,
        ids,
        row["position"].values.to_numpy(),
        row["weight"].values.to_numpy(),
        row["label"].values.to_numpy(),
        dict(zip(row["fault_id"].as_py(), row["fault_reason"].as_py(), strict=True)),
    )


def pack(tables: list[pa.Table]) -> pa.Table:
    """Return several one-row tables of :data:`SCHEMA` as one table of one row, which is one block of Ray Data."""
    rows = pa.concat_arrays([table.to_struct_array().combine_chunks() for table in tables])
    return pa.table({"micro_batches": pa.LargeListArray.from_arrays(pa.array([0, len(rows)], pa.int64()), rows)})


def unpack(table: pa.Table) -> Iterator[pa.Table]:
    """Yield the one-row tables given to :func:`pack`, in order, without a copy."""
    for chunk in table["micro_batches"].chunks:
        rows = pa.Table.from_batches([pa.RecordBatch.from_struct_array(chunk.flatten())])
        for i in range(rows.num_rows):
            yield rows.slice(i, 1)


def _numbers(values: np.ndarray, dtype: type) -> pa.Array:
    flat = pa.array(np.ascontiguousarray(values, dtype))
    return pa.ListArray.from_arrays(pa.array([0, len(flat)], pa.int32()), flat)


def _blobs(arrays: list[np.ndarray | None], dtype: type) -> pa.Array:
    """Return one list of binaries; a single array is not copied, several are concatenated."""
    flat = [np.ascontiguousarray(() if a is None else a, dtype).reshape(-1).view(np.uint8) for a in arrays]
    ends = np.cumsum([0, *(len(part) for part in flat)])
    data = flat[0] if len(flat) == 1 else np.concatenate(flat) if flat else np.empty(0, np.uint8)
    present = pa.array([a is not None for a in arrays], pa.bool_())
    buffers = [present.buffers()[1], pa.py_buffer(ends), pa.py_buffer(data)]
    blobs = pa.Array.from_buffers(pa.large_binary(), len(arrays), buffers)
    return pa.ListArray.from_arrays(pa.array([0, len(arrays)], pa.int32()), blobs)


def _array(blob: pa.Scalar, dtype: type, shape: tuple[int, ...]) -> np.ndarray:
    array: np.ndarray = np.frombuffer(blob.as_buffer(), dtype).reshape(shape)
    array.flags.writeable = False  # as after a transfer through Ray, so that local mode behaves alike
    return array


def _boxes(blob: pa.Scalar, count: int) -> np.ndarray:
    if not len(blob.as_buffer()):
        return np.zeros((count, 0, 6), np.float32)
    return _array(blob, np.float32, (count, -1, 6))
