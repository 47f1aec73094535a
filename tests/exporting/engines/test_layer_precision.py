"""Single layers in another float type."""

from __future__ import annotations

import numpy as np
import onnx
import pytest

from radioplat.errors import EngineError
from radioplat.exporting.engines.backends.onnxruntime import open_session
from radioplat.exporting.engines.build import build_engine
from radioplat.exporting.engines.layer_precision import set_precisions
from radioplat.exporting.engines.onnx_input import read_onnx
from radioplat.spec.schema.engine import EngineBackend, TensorRTConfig

RTX, ORT = EngineBackend.tensorrt_rtx, EngineBackend.onnxruntime


def features(path, images):
    return open_session(path, "disable_all").run(None, {"images": images})


def test_named_layers_take_kernels_of_their_type(vit_fp32, tmp_path):
    pytest.importorskip("tensorrt_rtx_bindings", reason="the `engine` extra is not installed")
    rules = ["*backbone.blocks.*:bf16", "*blocks.1.mlp.fc?:fp32"]
    report = build_engine(vit_fp32.path, tmp_path / "a.engine", TensorRTConfig(layers_precision=rules), backend=RTX)
    # Of 2 blocks with 4 linear layers each all but the second MLP; the rest keeps the file's type.
    assert report.coverage.kernels["bf16"] == 6 and report.coverage.kernels["fp32"] >= 7
    assert report.data_type == "fp32" and report.compute_capabilities == ["SM86", "SM89", "SM120"]


def test_neighbours_of_one_type_are_not_cast_between(vit_fp32, tmp_path):
    copy, notes = set_precisions(read_onnx(vit_fp32.path), ["*:fp16"], tmp_path)
    onnx.checker.check_model(str(copy.path), full_check=True)
    live = _live(copy.model.graph)
    casts = [node for node in live if node.op_type == "Cast"]
    # Images in; every output out.
    assert len(casts) == 1 + len(copy.outputs) and notes == []
    assert copy.float_type == "fp16" and read_onnx(vit_fp32.path).float_type == "fp32"


def _live(graph):
    wanted, live = {value.name for value in graph.output}, []
    for node in reversed(graph.node):
        if wanted.intersection(node.output):
            wanted.update(node.input)
            live.append(node)
    return live


def test_all_layers_in_the_files_own_type_change_nothing(conv_file, tmp_path):
    images = np.random.default_rng(0).random((2, 3, 32, 32), np.float32)
    same, _ = set_precisions(read_onnx(conv_file), ["*:fp32"], tmp_path)
    np.testing.assert_array_equal(features(same.path, images)[0], features(conv_file, images)[0])


def test_a_layer_in_fp16_rounds_as_fp16_and_no_more(conv_file, tmp_path):
    images = np.random.default_rng(0).random((2, 3, 32, 32), np.float32)
    one, _ = set_precisions(read_onnx(conv_file), ["backbone.b:fp16"], tmp_path)
    exact, rounded = features(conv_file, images)[0], features(one.path, images)[0]
    error = np.abs(exact - rounded).max() / np.abs(exact).max()
    assert 0 < error < 4 * 2.0**-11  # a few half units in the last place of fp16


def test_quantized_layers_stay_as_they_are(conv_int8, tmp_path):
    copy, notes = set_precisions(read_onnx(conv_int8), ["*:fp16"], tmp_path)
    assert notes == ["layers_precision did not change 3 quantized layers"]
    assert [layer.format for layer in copy.layers] == ["int8"] * 3
    with pytest.raises(
        EngineError, match=r"layers_precision\[0\]: 'backbone.fc' matches only quantized layers.*quantize"
    ):
        set_precisions(read_onnx(conv_int8), ["backbone.fc:fp16"], tmp_path)


def test_a_pattern_without_a_layer_names_what_is_near(conv_file, tmp_path):
    with pytest.raises(EngineError, match=r"layers_precision\[1\]: no layer matches 'backbone.fcc'.*backbone.fc"):
        set_precisions(read_onnx(conv_file), ["node_a:fp16", "backbone.fcc:fp16"], tmp_path)


def test_bf16_layers_are_not_for_cpus(conv_file, tmp_path):
    config = TensorRTConfig(layers_precision=["node_a:bf16"])
    with pytest.raises(EngineError, match="layers_precision: onnxruntime has no bf16 kernels"):
        build_engine(conv_file, tmp_path / "a.engine", config, backend=ORT)


def test_a_gpu_without_the_type_is_refused(conv_file, tmp_path):
    pytest.importorskip("tensorrt_rtx_bindings", reason="the `engine` extra is not installed")
    config = TensorRTConfig(layers_precision=["node_a:bf16"], compute_capabilities=["SM75"])
    with pytest.raises(EngineError, match="compute_capabilities: SM75 has no BF16"):
        build_engine(conv_file, tmp_path / "a.engine", config, backend=RTX)
