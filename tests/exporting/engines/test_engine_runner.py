"""Engines as functions of images, and their records."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radioplat.errors import EngineError
from radioplat.exporting.engines.build import build_engine
from radioplat.exporting.engines.engine_record import (
    mark_evaluated,
    mark_executed,
    mark_not_executed,
    read_record,
    state_of,
)
from radioplat.exporting.engines.engine_runner import EngineRunner, load_engine
from radioplat.spec.schema.engine import EngineBackend, TensorRTConfig

ORT = EngineBackend.onnxruntime


@pytest.fixture(scope="module")
def engine(conv_file, tmp_path_factory):
    """For 3 to 7 images at once."""
    path = tmp_path_factory.mktemp("engine") / "a.engine"
    config = TensorRTConfig(min_batch_size=3, opt_batch_size=5, max_batch_size=7)
    build_engine(conv_file, path, config, backend=ORT)
    return path


@pytest.fixture
def copied(engine, tmp_path):
    for file in (engine, engine.with_name("a.engine.json")):
        (tmp_path / file.name).write_bytes(file.read_bytes())
    return tmp_path / "a.engine"


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(count=st.integers(1, 30))
def test_any_number_of_images_gives_what_each_gives_alone(engine, count):
    runner = load_engine(engine)
    images = np.random.default_rng(count).random((count, 3, 32, 32), np.float32)
    together = runner(images)
    assert list(together) == runner.outputs == ["summary"] and together["summary"].shape == (count, 8)
    alone = np.concatenate([runner(images[i : i + 1])["summary"] for i in range(count)])
    np.testing.assert_allclose(together["summary"], alone, rtol=1e-5, atol=1e-6)


def test_the_builder_sees_batches_of_allowed_sizes_only(engine):
    sizes = []

    def run(images):
        sizes.append(len(images))
        return {"summary": images[:, 0, 0, :8]}

    runner = EngineRunner(read_record(engine), "cpu", run)
    images = np.arange(16 * 3 * 32 * 32, dtype=np.float32).reshape(16, 3, 32, 32)
    found = runner(images)
    assert sizes == [7, 7, 3]  # the last two filled up to the smallest batch
    np.testing.assert_array_equal(found["summary"], images[:, 0, 0, :8])


@pytest.mark.parametrize(
    ("images", "says"),
    [
        (np.zeros((2, 3, 32, 31), np.float32), r"needs images \[B, 3, 32, 32\], not \[2, 3, 32, 31\]"),
        (np.zeros((0, 3, 32, 32), np.float32), "needs images"),
        (np.zeros((2, 3, 32, 32), np.uint8), "float32 images in .*, not uint8"),
    ],
)
def test_other_images_are_refused(engine, images, says):
    with pytest.raises(EngineError, match=says):
        load_engine(engine)(images)


def test_evaluated_is_a_word_of_its_own(copied):
    before = read_record(copied)
    assert before["executed"] and not before["evaluated"] and before["evaluation"] is None
    record = mark_evaluated(copied, {"knn_top1": 0.91})
    assert record == json.loads(copied.with_name("a.engine.json").read_text())
    assert record["evaluated"] and record["evaluation"] == {"knn_top1": 0.91}
    assert record["execution"] == before["execution"]  # what the build measured stays


def test_tables_say_what_was_seen_of_an_engine(copied):
    assert state_of(read_record(copied)) == "executed on cpu"
    assert state_of(mark_evaluated(copied, {"knn_top1": 0.91})) == "executed on cpu, evaluated"
    broken = mark_executed(copied, {"device": "NVIDIA L4", "reason": "output summary is not finite"})
    assert state_of(broken | {"evaluated": False}) == "executed on NVIDIA L4 (output summary is not finite)"


def test_nothing_is_claimed_of_an_engine_that_was_not_run(copied):
    assert state_of(mark_not_executed(copied, "no GPU")) == "written, never executed"
    with pytest.raises(EngineError, match="not executed cannot have metrics"):
        mark_evaluated(copied, {"knn_top1": 0.91})
    assert not read_record(copied)["evaluated"]
    record = mark_evaluated(copied, {"knn_top1": 0.91}, device="NVIDIA L4")
    assert record["executed"] and record["execution"] == {"device": "NVIDIA L4", "by": "evaluate"}


def test_a_corrupt_or_missing_engine_or_record_is_named(copied):
    whole = copied.read_bytes()
    copied.write_bytes(whole[:-1])
    for use in (load_engine, lambda path: mark_evaluated(path, {})):
        with pytest.raises(EngineError, match="corrupt.*SHA-256 differs.*gen_trt_engine"):
            use(copied)
    copied.write_bytes(whole)
    record = copied.with_name("a.engine.json")
    for content in ("{", "[]", "{}"):
        record.write_text(content)
        with pytest.raises(EngineError, match="not the record of an engine.*again"):
            load_engine(copied)
    record.unlink()
    with pytest.raises(EngineError, match="record of the engine is missing.*a.engine.json"):
        load_engine(copied)
    copied.unlink()
    with pytest.raises(EngineError, match="no such engine.*Run `radioplat gen_trt_engine` first"):
        load_engine(copied)
