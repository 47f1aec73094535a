"""Real engines, built by TensorRT for RTX on the CPU."""

from __future__ import annotations

import hashlib
import json

import onnx
import pytest
from onnx import TensorProto, helper

from radioplat.errors import EngineError
from radioplat.exporting.engines.build import build_engine
from radioplat.exporting.engines.library import load_tensorrt
from radioplat.spec.schema.engine import TensorRTConfig

SIZE = 48


@pytest.fixture(autouse=True)
def _needs_tensorrt():
    pytest.importorskip("tensorrt_rtx_bindings", reason="the `engine` extra is not installed")


def pointwise(path, shape=("batch", 3, "height", "width")):
    """A file with one Relu, all sides open."""
    values = [helper.make_tensor_value_info(name, TensorProto.FLOAT, list(shape)) for name in ("images", "out")]
    graph = helper.make_graph([helper.make_node("Relu", ["images"], ["out"])], "g", values[:1], values[1:])
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 18)], ir_version=10), path)
    return path


def test_vit_with_heads_and_dynamic_batch(vit_fp32, tmp_path):
    report = build_engine(vit_fp32.path, tmp_path / "a.engine", TensorRTConfig())
    assert report.path.stat().st_size == report.bytes > 100_000
    assert report.compute_capabilities == ["SM86", "SM89", "SM120"]
    assert (report.batch, report.input_shape) == ((1, 8, 16), [3, SIZE, SIZE])
    assert report.outputs == list(vit_fp32.outputs)
    # A patch embedding, 2 blocks of 6 products (some of them fused), and heads of two layers.
    assert set(report.kernels) == {"fp32"} and report.kernels["fp32"] >= 12


def test_sidecar_says_what_it_was_built_from(vit_fp32, tmp_path):
    config = TensorRTConfig(max_batch_size=9, compute_capabilities=["sm86", "SM86"])
    report = build_engine(vit_fp32.path, tmp_path / "a.engine", config, height=SIZE, width=SIZE)
    facts = json.loads((tmp_path / "a.engine.json").read_text())
    assert facts["onnx_sha256"] == hashlib.sha256(vit_fp32.path.read_bytes()).hexdigest()
    assert facts["engine_sha256"] == hashlib.sha256(report.path.read_bytes()).hexdigest()
    assert facts["config"]["max_batch_size"] == 9 and facts["compute_capabilities"] == ["SM86"]
    assert facts["version"] == report.version and str(tmp_path) not in json.dumps(facts)
    assert sorted(file.name for file in tmp_path.iterdir()) == ["a.engine", "a.engine.json"]


def test_conv_net_in_bf16_takes_bf16_kernels(conv_bf16, tmp_path, capfd):
    config = TensorRTConfig(data_type="BF16", compute_capabilities=["SM89"])
    report = build_engine(conv_bf16.path, tmp_path / "a.engine", config)
    assert set(report.kernels) == {"bf16"} and report.kernels["bf16"] >= 17
    assert capfd.readouterr() == ("", "")


def test_a_fixed_batch_is_kept(vit_fp16, tmp_path):
    report = build_engine(
        vit_fp16.path, tmp_path / "a.engine", TensorRTConfig(data_type="fp16", compute_capabilities=["SM75"])
    )
    assert report.batch == (2, 2, 2) and set(report.kernels) == {"fp16"}


def test_open_sides_are_closed_by_the_fields(tmp_path):
    file = pointwise(tmp_path / "a.onnx")
    with pytest.raises(EngineError, match="the height is dynamic"):
        build_engine(file, tmp_path / "a.engine", TensorRTConfig())
    assert build_engine(file, tmp_path / "a.engine", TensorRTConfig(), height=8, width=6).input_shape == [3, 8, 6]


@pytest.mark.parametrize(
    ("wrong", "field", "says"),
    [
        ({"compute_capabilities": ["SM86", "SM42"]}, "compute_capabilities", "'SM42'.*Valid: SM75, SM80, SM86"),
        ({"compute_capabilities": ["CURRENT"]}, "compute_capabilities", "Valid: SM75"),
        ({"compute_capabilities": []}, "compute_capabilities", "at least one GPU"),
        ({"data_type": "fp16"}, "data_type", "is fp32, not fp16.*export.data_type=fp16"),
        ({"data_type": "int8"}, "data_type", "quantize"),
        ({"opt_batch_size": 99}, "{min,opt,max}_batch_size", "1, 99, 16"),
    ],
)
def test_wrong_fields_are_named(vit_fp32, tmp_path, wrong, field, says):
    with pytest.raises(EngineError, match=says) as caught:
        build_engine(vit_fp32.path, tmp_path / "a.engine", TensorRTConfig(**wrong))
    assert caught.value.problems[0].where == f"gen_trt_engine.tensorrt.{field}"
    assert list(tmp_path.iterdir()) == []


def test_wrong_files_and_sizes_are_named(vit_fp32, tmp_path):
    with pytest.raises(EngineError, match=r"gen_trt_engine.trt_engine: .*must end in .engine"):
        build_engine(vit_fp32.path, tmp_path / "a.plan", TensorRTConfig())
    with pytest.raises(EngineError, match=r"gen_trt_engine.input_height: .*height 48, not 64"):
        build_engine(vit_fp32.path, tmp_path / "a.engine", TensorRTConfig(), height=64)
    with pytest.raises(EngineError, match=r"gen_trt_engine.onnx_file: .*radioplat export"):
        build_engine(tmp_path / "none.onnx", tmp_path / "a.engine", TensorRTConfig())
    for content in (b"hello" * 100, b"", vit_fp32.path.read_bytes()[:5000]):
        (tmp_path / "bad.onnx").write_bytes(content)
        with pytest.raises(EngineError, match="is not an ONNX file"):
            build_engine(tmp_path / "bad.onnx", tmp_path / "a.engine", TensorRTConfig())


def test_the_builders_reason_is_told(vit_fp32, tmp_path):
    with pytest.raises(EngineError, match="could not build.*FP32 GEMM is not supported"):
        build_engine(vit_fp32.path, tmp_path / "a.engine", TensorRTConfig(compute_capabilities=["SM75"]))
    assert list(tmp_path.iterdir()) == []


def test_the_parsers_reason_is_told(tmp_path):
    values = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 3, 4, 4]) for n in ("images", "out")]
    graph = helper.make_graph(
        [helper.make_node("Mystery", ["images"], ["out"], domain="nowhere")], "g", values[:1], values[1:]
    )
    opsets = [helper.make_opsetid("", 18), helper.make_opsetid("nowhere", 1)]
    onnx.save(helper.make_model(graph, opset_imports=opsets, ir_version=10), tmp_path / "a.onnx")
    with pytest.raises(EngineError, match=r"cannot read the graph: at node .*\(Mystery\)"):
        build_engine(tmp_path / "a.onnx", tmp_path / "a.engine", TensorRTConfig())


def test_a_missing_or_broken_tensorrt_says_how_to_install_it(tmp_path, monkeypatch):
    (tmp_path / "half_installed_trt.py").write_text("import ctypes\nctypes.CDLL('libnvonnxparser.so.0')\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(
        EngineError,
        match=r"^gen_trt_engine.backend: .*half_installed_trt: libnvonnxparser.*pip install 'radioplat\[engine\]'",
    ):
        load_tensorrt(["no_such_trt", "half_installed_trt"])
    with pytest.raises(EngineError, match="gen_trt_engine.backend: no TensorRT can be imported. Install"):
        load_tensorrt(["no_such_trt"])
