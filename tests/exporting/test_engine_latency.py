"""An engine that was built on another machine is measured where it runs, and its record says so."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

from radioplat.cli.main import main
from radioplat.common.cpu_threads import UNITS, cpu_name
from radioplat.exporting.engine_latency import is_of_this_machine, latency_here
from radioplat.exporting.engines.build import build_engine
from radioplat.exporting.engines.engine_record import read_record, record_path
from radioplat.spec.schema.engine import EngineBackend, TensorRTConfig

from .engines.conftest import conv_file, conv_int8  # noqa: F401 - fixtures

THREADS = torch.get_num_threads()
CONFIG = TensorRTConfig(data_type="int8", min_batch_size=1, opt_batch_size=2, max_batch_size=4)


@pytest.fixture
def built(conv_int8, tmp_path):  # noqa: F811 - a fixture
    """An engine without a latency, as one that did not run where it was built."""
    build_engine(conv_int8, tmp_path / "a.engine", CONFIG, backend=EngineBackend.onnxruntime)
    assert read_record(tmp_path / "a.engine")["latency"] is None
    return tmp_path / "a.engine"


def test_without_the_onnx_file_the_engine_alone_is_measured(built, capsys):
    assert main(["profile", str(built), "seconds=0.1"]) == 0
    latency = read_record(built)["latency"]
    assert latency["cpu"] == cpu_name(UNITS) and latency["device"] == "cpu" and list(latency["batches"]) == ["1"]
    assert list(latency["batches"]["1"]) == ["int8"] and latency["batches"]["1"]["int8"]["p50"] > 0
    said = "not measured: no ONNX file"
    assert set(latency["not_measured"]) == {"fp32", "fp16", "bf16"}
    assert all(reason.startswith(said) for reason in latency["not_measured"].values())
    assert said in capsys.readouterr().out
    assert latency_here(built) == (latency, False)


def test_with_the_onnx_file_the_float_types_are_measured_too(built, conv_int8):  # noqa: F811 - a fixture
    shutil.copy(conv_int8, built.parent / conv_int8.name)
    latency, new = latency_here(built)
    assert new and set(latency["batches"]["1"]) == {"int8", "fp32", "fp16"} and not latency["not_measured"]
    assert bool(latency["warnings"]) == (latency["fastest"]["1"] != "int8")
    assert read_record(built)["latency"] is None  # the caller writes it
    (built.parent / conv_int8.name).write_bytes(conv_int8.read_bytes() + conv_int8.read_bytes())
    latency, _ = latency_here(built)
    assert all("is not the file that the engine was built from" in text for text in latency["not_measured"].values())


def test_a_latency_of_another_machine_is_replaced(built):
    assert main(["profile", str(built), "seconds=0.1"]) == 0
    record = json.loads(record_path(built).read_text())
    record["latency"] |= {"cpu": "Another CPU (1, avx2)"}
    record_path(built).write_text(json.dumps(record))
    assert not is_of_this_machine(record["latency"], "cpu")
    assert main(["profile", str(built), "seconds=0.1"]) == 0
    assert read_record(built)["latency"]["cpu"] == cpu_name(UNITS)


@pytest.mark.parametrize(
    ("latency", "device", "same"),
    [
        (None, "cpu", False),
        ({"device": "cpu", "cpu": cpu_name(UNITS), "threads": THREADS}, "cpu", True),
        ({"device": "cpu", "cpu": cpu_name(UNITS), "threads": 2 * THREADS}, "cpu", False),
        ({"device": "cpu", "cpu": cpu_name(UNITS)}, "cpu", False),  # of a version that did not write them
        ({"device": "NVIDIA A10", "cpu": "any"}, "NVIDIA A10", True),
        ({"device": "NVIDIA A10", "cpu": cpu_name(UNITS)}, "cpu", False),
        ({"device": "NVIDIA A10", "cpu": cpu_name(UNITS)}, "NVIDIA L4", False),
    ],
)
def test_a_machine_is_its_gpu_or_its_cpu(latency, device, same):
    assert is_of_this_machine(latency, device) is same
