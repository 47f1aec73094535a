"""Batch to table and back."""

from __future__ import annotations

import io

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from radioplat.data.batch import Batch, View
from radioplat.data.loading.arrow_batch import SCHEMA, batch_to_table, pack, table_to_batch, unpack


@st.composite
def batches(draw) -> Batch:
    count = draw(st.integers(0, 4))
    ids = draw(hnp.arrays(np.int64, count))
    views = {}
    for name in draw(st.lists(st.text(max_size=6), max_size=3, unique=True)):
        height, width = draw(st.integers(1, 4)), draw(st.integers(1, 4))
        views[name] = View(
            draw(hnp.arrays(np.uint8, (count, 3, height, width))),
            draw(hnp.arrays(np.float32, (count, 3, 3), elements=st.floats(-9, 9, width=32))),
            draw(st.none() | hnp.arrays(np.bool_, (count, height, width))),
        )
    faults = {int(i): draw(st.text(max_size=9)) for i in ids[: draw(st.integers(0, count))]}
    weight = draw(hnp.arrays(np.float32, count, elements=st.sampled_from([0.0, 1.0])))
    position, label = draw(hnp.arrays(np.int64, count)), draw(hnp.arrays(np.int64, count))
    return Batch(draw(st.integers(-1, 2**40)), views, ids, position, weight, label, faults)


def same(a: np.ndarray | None, b: np.ndarray | None) -> bool:
    return (a is None and b is None) or (a.dtype == b.dtype and a.shape == b.shape and np.array_equal(a, b))


def assert_equal(a: Batch, b: Batch) -> None:
    assert a.micro_batch == b.micro_batch and a.faults == b.faults and list(a.views) == list(b.views)
    for name in ("sample_id", "position", "weight", "label"):
        assert same(getattr(a, name), getattr(b, name)), name
    for name in a.views:
        for part in ("pixels", "homography", "valid"):
            assert same(getattr(a.views[name], part), getattr(b.views[name], part)), part


@given(batches())
@settings(max_examples=80, deadline=None)
def test_round_trip(batch):
    table = batch_to_table(batch)
    assert table.num_rows == 1 and table.schema.equals(SCHEMA)
    assert_equal(table_to_batch(table), batch)


@given(st.lists(batches(), min_size=2, max_size=3))
@settings(max_examples=30, deadline=None)
def test_round_trip_through_concatenation_and_a_file(all_batches):
    table = pa.concat_tables([batch_to_table(b) for b in all_batches]).combine_chunks()
    buffer = io.BytesIO()
    with pa.ipc.new_stream(buffer, table.schema) as writer:
        writer.write_table(table)
    table = pa.ipc.open_stream(buffer.getvalue()).read_all()
    for i, batch in enumerate(all_batches):
        assert_equal(table_to_batch(table.slice(i, 1)), batch)


def test_reading_copies_nothing():
    pixels = np.zeros((2, 3, 256, 256), np.uint8)
    view = View(pixels, np.zeros((2, 3, 3), np.float32))
    ids = np.arange(2)
    table = batch_to_table(Batch(0, {"v": view}, ids, ids, np.ones(2, np.float32), ids))
    before = pa.total_allocated_bytes()
    got = table_to_batch(table).views["v"].pixels
    assert pa.total_allocated_bytes() - before < 10_000
    assert not got.flags.owndata and not got.flags.writeable


def test_more_than_one_row_is_refused():
    ids = np.arange(1)
    table = batch_to_table(Batch(0, {}, ids, ids, np.ones(1, np.float32), ids))
    with pytest.raises(ValueError, match="one row"):
        table_to_batch(pa.concat_tables([table, table]))


@settings(max_examples=30, deadline=None)
@given(st.lists(batches(), min_size=1, max_size=4))
def test_several_travel_in_one_row(all_batches):
    table = pack([batch_to_table(batch) for batch in all_batches])
    assert table.num_rows == 1
    buffer = io.BytesIO()
    with pa.ipc.new_stream(buffer, table.schema) as writer:
        writer.write_table(table)
    back = list(unpack(pa.ipc.open_stream(buffer.getvalue()).read_all()))
    assert len(back) == len(all_batches)
    for one, batch in zip(back, all_batches, strict=True):
        assert_equal(table_to_batch(one), batch)
