"""Latency in an engine's record: measured in turn, beside the float twins of the file, with a warning where due."""

from __future__ import annotations

import json
import re
import sys
import time

import numpy as np
import onnx
import pytest

from radioplat.errors import EngineError
from radioplat.exporting.engines import build
from radioplat.exporting.engines.backends.onnxruntime import open_session
from radioplat.exporting.engines.build import _in_openvino, build_engine
from radioplat.exporting.engines.comparison import warnings_of
from radioplat.exporting.engines.engine_runner import load_engine
from radioplat.exporting.engines.float_twins import write_twin
from radioplat.exporting.engines.interface import BuildRequest
from radioplat.exporting.engines.latency import timer
from radioplat.exporting.latency import LEAST_CALLS, WINDOW, measure_in_turn
from radioplat.exporting.onnx.precision import retype, write_in_fp32
from radioplat.exporting.onnx.publish import save
from radioplat.spec.schema.engine import EngineBackend, TensorRTConfig
from radioplat.tasks.export.show import show_engine

SMALL = {"min_batch_size": 1, "opt_batch_size": 2, "max_batch_size": 4}


def outputs(path, images):
    session = open_session(path, "disable_all")
    return session.run(None, {"images": images})


def test_sleepers_are_measured():
    def sleeper(ms):
        def call():
            start = time.perf_counter()
            time.sleep(ms / 1000)
            return 1000 * (time.perf_counter() - start)

        return call

    found = measure_in_turn({"slow": sleeper(6), "fast": sleeper(2)}, seconds=0.2)
    assert found["slow"].p50 == pytest.approx(6, rel=0.2) and found["fast"].p50 == pytest.approx(2, rel=0.3)
    for row in found.values():
        assert row.p50 <= row.p90 <= row.p99 and row.calls >= LEAST_CALLS and row.warm_up >= 2 * WINDOW


@pytest.mark.parametrize("backend", [EngineBackend.onnxruntime, EngineBackend.openvino])
@pytest.mark.parametrize("kind", ["conv_int8", "vit_int8"])
def test_a_record_has_its_latency_beside_those_of_floats(kind, backend, tmp_path, request, capsys):
    pytest.importorskip(backend.value)
    source = request.getfixturevalue(kind)
    config = TensorRTConfig(data_type="int8", **SMALL)
    report = build_engine(source, tmp_path / "a.engine", config, backend=backend, latency_seconds=0.05)
    latency = json.loads((tmp_path / "a.engine.json").read_text())["latency"]
    assert list(latency["batches"]) == ["1", "2", "4"] and not set(latency["not_measured"]) - {"fp16", "bf16"}
    for size, row in latency["batches"].items():
        wanted = {"fp32", "fp16"} if backend is EngineBackend.onnxruntime else {"fp32", "fp16", "bf16"}
        assert list(row)[:2] == ["int8", "fp32"] and set(row) | set(latency["not_measured"]) == {"int8", *wanted}
        assert all(0 < each["p50"] <= each["p99"] for each in row.values())
        fastest = min(row, key=lambda name: row[name]["p50"])
        assert latency["fastest"][size] == fastest
        assert latency["speed_up"][size]["fp32"] == pytest.approx(row["fp32"]["p50"] / row["int8"]["p50"], abs=1e-3)
    slower = [size for size, name in latency["fastest"].items() if name != "int8"]
    assert bool(slower) == bool(latency["warnings"])
    show_engine(report)
    lines = " ".join(capsys.readouterr().out.split())
    assert "latency int8" in lines and "images, the median on" in lines and ("warning: " in lines) == bool(slower)
    assert len(list(tmp_path.iterdir())) == 2  # the twins are gone


def test_a_slower_engine_is_named_with_the_causes():
    row = {"int8": {"p50": 3.0}, "fp32": {"p50": 1.5}, "fp16": {"p50": 4.0}}
    latency = {"fastest": {"1": "fp32", "8": "int8"}, "batches": {"1": row, "8": row}}
    lines = warnings_of(latency, "int8", ["because"])
    assert lines == ["int8 is not the fastest here: 1 image takes 3 ms in int8 and 1.5 ms in fp32", "because"]
    assert warnings_of({"fastest": {"1": "int8"}, "batches": {"1": row}}, "int8", ["because"]) == []


@pytest.mark.parametrize("installed", [True, False])
def test_openvino_is_recommended_with_what_it_measured(installed, conv_int8, tmp_path, monkeypatch):
    if installed:
        pytest.importorskip("openvino")
    else:
        monkeypatch.setitem(sys.modules, "openvino", None)  # its import fails
    config, backend = TensorRTConfig(data_type="int8", **SMALL), EngineBackend.onnxruntime
    report = build_engine(conv_int8, tmp_path / "a.engine", config, backend=backend)
    request = BuildRequest(config)
    said = _in_openvino(conv_int8, report.path, request, 1, 0.05, tmp_path)
    if not installed:
        assert said.startswith(
            "OpenVINO (gen_trt_engine.backend=openvino) may be faster; not measured: openvino cannot"
        )
        return
    ratio, theirs, ours = re.fullmatch(
        r"OpenVINO runs this file (\S+) times as fast here: (\S+) ms for 1 image, (\S+) in onnxruntime(?: \(.*\))?",
        said,
    ).groups()
    assert float(ratio) == pytest.approx(float(ours) / float(theirs), rel=0.1)
    assert ("(gen_trt_engine.backend=openvino)" in said) == (float(theirs) < float(ours))


def test_a_file_of_a_fixed_batch_is_compared_with_openvino_at_that_batch(conv_int8, tmp_path, monkeypatch):
    pytest.importorskip("openvino")
    model = onnx.load(conv_int8)
    for value in (*model.graph.input, *model.graph.output):
        value.type.tensor_type.shape.dim[0].dim_value = 4
    onnx.save(model, tmp_path / "four.onnx")
    monkeypatch.setattr(build, "is_slower", lambda *given: True)  # whichever is slower on this CPU
    monkeypatch.setattr(build, "warnings_of", lambda latency, data_type, causes: causes)
    report = build_engine(
        tmp_path / "four.onnx",
        tmp_path / "a.engine",
        TensorRTConfig(data_type="int8"),
        backend=EngineBackend.onnxruntime,
        latency_seconds=0.05,
    )
    assert report.batch == (4, 4, 4) and list(report.latency["batches"]) == ["4"]
    assert "ms for 4 images" in report.latency["warnings"][0]


def test_a_batch_that_an_engine_does_not_take_is_an_error_with_its_file(conv_int8, tmp_path):
    model = onnx.load(conv_int8)
    model.graph.input[0].type.tensor_type.shape.dim[0].dim_value = 4
    onnx.save(model, tmp_path / "four.onnx")
    config, backend = TensorRTConfig(data_type="int8"), EngineBackend.onnxruntime
    build_engine(tmp_path / "four.onnx", tmp_path / "a.engine", config, backend=backend)
    call, _ = timer(load_engine(tmp_path / "a.engine"), 1)
    with pytest.raises(EngineError, match="onnxruntime failed: .*dimensions") as caught:
        call()
    assert caught.value.problems[0].where == str(tmp_path / "a.engine")


def test_an_fp8_file_is_not_measured_in_openvino(conv_fp8, tmp_path):
    said = _in_openvino(conv_fp8, conv_fp8, BuildRequest(TensorRTConfig(data_type="fp8", **SMALL)), 1, 0.05, tmp_path)
    assert "not measured: " in said


def test_twins_compute_what_the_float_student_computes(vit_int8, vit_fp32, tmp_path):
    """Up to the rounding of weights: the graph without Q/DQ beside the student's own fp32 file."""
    images = np.random.default_rng(0).random((2, 3, 48, 48), dtype=np.float32)
    wanted = outputs(vit_fp32.path, images)
    for name, limit in (("fp32", 0.05), ("fp16", 0.05)):
        twin = write_twin(vit_int8, name, tmp_path / f"{name}.onnx")
        model = onnx.load(twin)
        onnx.checker.check_model(model, full_check=True)
        assert not [node for node in model.graph.node if "QuantizeLinear" in node.op_type]
        for value, other in zip(outputs(twin, images), wanted, strict=True):
            assert np.abs(value - other).max() <= limit * np.abs(other).max()


def test_a_file_in_halves_is_widened_with_its_scales(vit_int8, tmp_path):
    model = onnx.load(vit_int8)
    model.opset_import[0].version = max(19, model.opset_import[0].version)
    retype(model, "fp16")
    save(model, tmp_path / "half.onnx")
    wide = write_in_fp32(tmp_path / "half.onnx", tmp_path / "wide.onnx")
    graph = onnx.load(wide).graph
    onnx.checker.check_model(onnx.load(wide), full_check=True)
    types = {tensor.data_type for tensor in graph.initializer}
    assert onnx.TensorProto.FLOAT16 not in types and onnx.TensorProto.INT8 in types
    images = np.random.default_rng(0).random((2, 3, 48, 48), dtype=np.float32)
    for value, other in zip(outputs(wide, images), outputs(tmp_path / "half.onnx", images), strict=True):
        assert np.abs(value - other).max() <= 0.05 * np.abs(other).max()


def test_a_file_that_has_no_twin_still_becomes_an_engine(conv_int8, tmp_path):
    """One that computes in double between its own types."""
    model = onnx.load(conv_int8)
    cast = onnx.helper.make_node("Cast", ["summary.wide"], ["summary"], "widen", to=onnx.TensorProto.FLOAT)
    double = onnx.helper.make_node("Cast", ["summary.own"], ["summary.wide"], "double", to=onnx.TensorProto.DOUBLE)
    for node in model.graph.node:
        node.output[:] = ["summary.own" if name == "summary" else name for name in node.output]
    model.graph.node.extend([double, cast])
    onnx.save(model, tmp_path / "foreign.onnx")
    config = TensorRTConfig(data_type="int8", **SMALL)
    backend = EngineBackend.onnxruntime
    report = build_engine(
        tmp_path / "foreign.onnx", tmp_path / "a.engine", config, backend=backend, latency_seconds=0.05
    )
    assert report.executed and set(report.latency["batches"]["1"]) | set(report.latency["not_measured"]) == {
        "int8", "fp32", "fp16"
    }  # fmt: skip


def test_no_latency_of_an_engine_that_does_not_run(conv_int8, tmp_path):
    pytest.importorskip("tensorrt_rtx_bindings", reason="the `engine` extra is not installed")
    config = TensorRTConfig(data_type="int8", **SMALL)
    backend = EngineBackend.tensorrt_rtx
    report = build_engine(conv_int8, tmp_path / "a.engine", config, backend=backend, latency_seconds=0.05)
    if report.executed:
        pytest.skip("this machine has a GPU")
    assert report.latency is None


def test_a_damaged_engine_is_refused_before_anything_is_measured(tmp_path):
    from radioplat.exporting.engines.profile import profile

    with pytest.raises(EngineError, match="there is no such engine"):
        profile(tmp_path / "a.engine")
