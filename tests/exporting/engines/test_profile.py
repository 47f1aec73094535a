"""``radioplat profile``: layers by time on both CPU backends, and its advice."""

from __future__ import annotations

import json

import pytest

from radioplat.cli.main import main
from radioplat.errors import EngineError
from radioplat.exporting.engines.build import build_engine
from radioplat.exporting.engines.engine_record import record_path
from radioplat.exporting.engines.interface import LayerTime
from radioplat.exporting.engines.profile import advice, group_of, profile, shares
from radioplat.spec.schema.engine import EngineBackend, TensorRTConfig

BACKENDS = [EngineBackend.onnxruntime, EngineBackend.openvino]
SMALL = {"min_batch_size": 1, "opt_batch_size": 2, "max_batch_size": 4}


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_layers_add_up_to_the_latency(backend, vit_int8, tmp_path):
    pytest.importorskip(backend.value)
    config = TensorRTConfig(data_type="int8", **SMALL)
    build_engine(vit_int8, tmp_path / "a.engine", config, backend=backend)
    found = profile(tmp_path / "a.engine", seconds=0.2)
    total = sum(layer.milliseconds for layer in found.layers)
    assert found.batch == 2 and total > 0.3 * found.latency.p50  # onnxruntime takes time to write times
    times = [layer.milliseconds for layer in found.layers]
    assert times == sorted(times, reverse=True) and sum(found.groups.values()) == pytest.approx(1)
    assert any(group_of(layer) == "products" and layer.reads == "int8" for layer in found.layers)
    assert len(found.advice) <= 3


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_command_prints_a_table_and_writes_all(backend, conv_int8, tmp_path, capsys):
    pytest.importorskip(backend.value)
    build_engine(conv_int8, tmp_path / "a.engine", TensorRTConfig(data_type="int8", **SMALL), backend=backend)
    assert not main(["profile", str(tmp_path / "a.engine"), "batch_size=1", "seconds=0.1", f"out={tmp_path}/p.json"])
    lines = capsys.readouterr().out
    assert "1 image in" in lines and "layers by time" in lines and "time by group: " in lines
    written = json.loads((tmp_path / "p.json").read_text())
    assert written["batch"] == 1 and {"name", "kind", "milliseconds", "reads", "writes", "group"} <= set(
        written["layers"][0]
    )


def test_wrong_options_name_the_field(conv_int8, tmp_path, capsys):
    build_engine(
        conv_int8, tmp_path / "a.engine", TensorRTConfig(data_type="int8", **SMALL), backend=EngineBackend.onnxruntime
    )
    with pytest.raises(EngineError, match=r"batch_size: the engine takes no batch of 9.*built for 1 to 4 images"):
        profile(tmp_path / "a.engine", batch=9)
    assert main(["profile", str(tmp_path / "a.engine"), "batch=1"]) and "batch_size=N" in capsys.readouterr().err


def test_advice_is_sorted_by_time():
    layers = [
        LayerTime("conv1", "Convolution", 5.0, "fp32", "fp32"),
        LayerTime("conv2", "Convolution", 2.0, "int8", "int8"),
        LayerTime("reorder", "Reorder", 2.0, "fp32", "int8"),
        LayerTime("add", "Eltwise", 1.0, "fp32", "fp32"),
    ]
    assert shares(layers) == pytest.approx({"products": 0.7, "conversions": 0.2, "element-wise": 0.1})
    lines = advice(layers, {"data_type": "int8"})
    assert [line.split(" ")[0] for line in lines] == ["1", "1", "1"] and "conv1" in lines[0] and "50%" in lines[0]
    assert "reorder" in lines[1] and "add" in lines[2]
    assert advice(layers[1:2], {"data_type": "int8"}) == []


def test_shares_in_advice_are_those_of_the_layers():
    """The order is by what is estimated to be saved: a quarter of a product that writes floats, half of one in fp32."""
    layers = [
        LayerTime("conv1", "Convolution", 6.0, "int8", "fp32"),
        LayerTime("relu", "Eltwise", 2.5, "fp32", "fp32"),
        LayerTime("pool", "Pooling", 1.5, "int8", "int8"),
    ]
    lines = advice(layers, {"data_type": "int8"})
    assert ["element-wise" in line for line in lines] == [True, False]
    assert "(25% of the time)" in lines[0] and "(60% of the time)" in lines[1] and "INT8 layers write" in lines[1]
    floats = [LayerTime("conv", "Convolution", 8.0, "fp32", "fp32"), LayerTime("relu", "Eltwise", 2.0, "fp32", "fp32")]
    assert "(80% of the time)" in advice(floats, {"data_type": "fp32"})[0]


def test_all_warnings_of_a_latency_are_printed_and_take_no_place_of_advice(conv_int8, tmp_path, capsys):
    path = tmp_path / "a.engine"
    build_engine(conv_int8, path, TensorRTConfig(data_type="int8", **SMALL), backend=EngineBackend.onnxruntime)
    assert not main(["profile", str(path), "batch_size=1", "seconds=0.1"])
    before = capsys.readouterr().out
    record = json.loads(record_path(path).read_text())
    record["latency"]["warnings"] = ["int8 is not the fastest here", "because"]
    record_path(path).write_text(json.dumps(record))
    assert not main(["profile", str(path), "batch_size=1", "seconds=0.1", f"out={tmp_path}/p.json"])
    lines = capsys.readouterr().out
    assert "warning: int8 is not the fastest here\nwarning: because\n" in lines
    assert json.loads((tmp_path / "p.json").read_text())["warnings"] == record["latency"]["warnings"]
    assert "1. " in before and not any(f"{i}. int8 is not" in lines for i in (1, 2, 3))
