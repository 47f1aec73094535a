"""Engines by OpenVINO: executed here, compared with the ONNX file, INT8 by its own word."""

from __future__ import annotations

import json
import subprocess
import sys

import numpy as np
import pytest

from radioplat.errors import EngineError
from radioplat.exporting.engines.backends.onnxruntime import open_session
from radioplat.exporting.engines.build import build_engine
from radioplat.exporting.engines.engine_runner import load_engine
from radioplat.spec.schema.engine import EngineBackend, TensorRTConfig
from tests.helpers.int8_units import needs_int8_units

pytest.importorskip("openvino", reason="the `openvino` extra is not installed")
BACKEND = EngineBackend.openvino


@pytest.mark.parametrize(
    ("name", "data_type"), [("conv_file", "fp32"), pytest.param("conv_int8", "int8", marks=needs_int8_units)]
)
def test_it_computes_what_the_file_says(name, data_type, tmp_path, request):
    file = request.getfixturevalue(name)
    report = build_engine(file, tmp_path / "a.engine", TensorRTConfig(data_type=data_type), backend=BACKEND)
    record = json.loads((tmp_path / "a.engine.json").read_text())
    assert record["executed"] and record["library"] == "openvino" and record["execution"]["device"] == "cpu"
    images = np.random.default_rng(1).random((19, 3, 32, 32), np.float32)  # more than the largest batch
    found = load_engine(tmp_path / "a.engine")(images)
    session = open_session(file, "disable_all")
    (wanted,) = session.run(["summary"], {"images": images})
    gap = np.abs(found["summary"] - wanted).max() / np.abs(wanted).max()
    # Integer kernels round elsewhere; a step of an INT8 activation is 1/127 of its range.
    assert gap < (1e-5 if data_type == "fp32" else 0.02)
    assert set(report.coverage.kernels) == {data_type} and sum(report.coverage.kernels.values()) == 3


SIGNALLED = """
import faulthandler, gc, signal, sys
from radioplat.exporting.engines.engine_runner import load_engine

faulthandler.enable()  # then handlers of signals have a stack of their own, which OpenVINO replaces
asked = []
signal.signal(signal.SIGTERM, lambda number, frame: asked.append(number))
first, second = load_engine(sys.argv[1]), load_engine(sys.argv[1])
signal.raise_signal(signal.SIGTERM)
del first
gc.collect()
signal.raise_signal(signal.SIGTERM)
del second
gc.collect()
signal.raise_signal(signal.SIGTERM)
print("asked to stop", len(asked), "times")
"""


def test_a_signal_after_engines_were_freed_in_the_order_of_their_making_ends_nothing(conv_file, tmp_path):
    build_engine(conv_file, tmp_path / "a.engine", TensorRTConfig(), backend=BACKEND)
    command = [sys.executable, "-c", SIGNALLED, str(tmp_path / "a.engine")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert (done.returncode, done.stdout) == (0, "asked to stop 3 times\n"), done.stderr[-2000:]


def test_every_layer_of_a_quantized_vit_takes_an_int8_kernel(vit_int8, tmp_path):
    report = build_engine(vit_int8, tmp_path / "a.engine", TensorRTConfig(data_type="int8"), backend=BACKEND)
    taken, kernels = report.coverage.share("int8")
    assert report.executed and report.coverage.eligible == 15 and taken == kernels >= 13


def test_it_opens_without_its_onnx_file_and_names_a_damaged_one(conv_file, tmp_path):
    path = tmp_path / "a.engine"
    build_engine(conv_file, path, TensorRTConfig(), backend=BACKEND)
    data = path.read_bytes()
    for damaged in (b"", data[:7], data[:100], b"\xff" * 8 + data[8:], data[8:]):
        path.write_bytes(damaged)
        with pytest.raises(EngineError) as caught:
            load_engine(path)
        assert caught.value.problems[0].where == str(path)


@pytest.mark.parametrize(
    ("config", "where"),
    [
        ({"workspace_size": 1}, "workspace_size"),
        ({"compute_capabilities": ["SM86"]}, "compute_capabilities"),
    ],
)
def test_fields_of_gpus_are_refused_by_name(conv_file, tmp_path, config, where):
    with pytest.raises(EngineError, match="openvino does not support this field") as caught:
        build_engine(conv_file, tmp_path / "a.engine", TensorRTConfig(**config), backend=BACKEND)
    assert caught.value.problems[0].where == f"gen_trt_engine.tensorrt.{where}"


def test_fp8_has_no_kernels_for_cpus(conv_fp8, tmp_path):
    with pytest.raises(EngineError, match="no FP8 kernels for CPUs"):
        build_engine(conv_fp8, tmp_path / "a.engine", TensorRTConfig(data_type="fp8"), backend=BACKEND)
