"""Engines by every backend that this machine has, from fp32, INT8 and FP8 files."""

from __future__ import annotations

import json
from collections import Counter

import numpy as np
import pytest
import torch

from radioplat.errors import EngineError
from radioplat.evaluation.models.engine import EngineModel
from radioplat.exporting.engines import build, library
from radioplat.exporting.engines.backends import onnxruntime_session
from radioplat.exporting.engines.backends.onnxruntime import _PRODUCTS, open_session
from radioplat.exporting.engines.build import build_engine
from radioplat.exporting.engines.engine_runner import load_engine
from radioplat.exporting.qdq import int8_overflow
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.compress import Stage
from radioplat.spec.schema.engine import CalibrationConfig, EngineBackend, TensorRTConfig
from radioplat.tasks.compress.stages import STAGES
from radioplat.tasks.evaluate.side_by_side import Row, kernel_notes
from radioplat.tasks.export.show import show_engine

ORT, RTX, TENSORRT = EngineBackend.onnxruntime, EngineBackend.tensorrt_rtx, EngineBackend.tensorrt


@pytest.fixture
def rtx():
    pytest.importorskip("tensorrt_rtx_bindings", reason="the `engine` extra is not installed")


def on_source(path, images):
    """What the ONNX file computes as it is written."""
    session = open_session(path, "disable_all")
    names = [value.name for value in session.get_outputs()]
    return dict(zip(names, session.run(names, {"images": images}), strict=True))


@pytest.mark.usefixtures("rtx")
def test_every_layer_of_a_quantized_vit_takes_an_int8_kernel(vit_int8, tmp_path):
    report = build_engine(vit_int8, tmp_path / "a.engine", TensorRTConfig(data_type="int8"), backend=RTX)
    # A patch embedding, 2 blocks of 4 linear layers, and of two heads (one has a summary only) 2 + 4 layers. Layers
    # that share an input may share a kernel.
    taken, kernels = report.coverage.share("int8")
    assert report.coverage.eligible == 15 and 13 <= taken == kernels <= 15
    assert report.coverage.quantized == {"int8": 15}
    assert report.coverage.not_quantized == [] and report.coverage.in_float_kernels == []


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")
@pytest.mark.parametrize("backend", [RTX, TENSORRT])
def test_on_a_gpu_the_engine_is_executed_and_compared(conv_file, tmp_path, backend):
    if backend is TENSORRT:
        pytest.importorskip("tensorrt")
    here = "SM{}{}".format(*torch.cuda.get_device_capability())
    config = TensorRTConfig(compute_capabilities=[here])
    report = build_engine(conv_file, tmp_path / "a.engine", config, backend=backend)
    assert report.executed and report.execution["max_relative_error"] < 1e-2


@pytest.mark.usefixtures("rtx")
@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without a CUDA device")
def test_what_cannot_be_run_here_is_written_and_not_executed(conv_int8, tmp_path, capsys):
    report = build_engine(conv_int8, tmp_path / "a.engine", TensorRTConfig(data_type="int8"), backend=RTX)
    record = json.loads((tmp_path / "a.engine.json").read_text())
    assert (record["built"], record["executed"], record["evaluated"]) == (True, False, False)
    assert "no NVIDIA driver" in record["execution"]["reason"] and not report.executed
    assert report.state == "written, never executed"
    show_engine(report)
    lines = capsys.readouterr().out
    assert "executed      never: there is no NVIDIA driver" in lines and "runs on" not in lines and "yes" not in lines
    with pytest.raises(EngineError, match="no NVIDIA driver on this machine.*backend=onnxruntime"):
        load_engine(tmp_path / "a.engine")


@pytest.mark.usefixtures("rtx")
def test_fp8_leaves_older_gpus_out_unless_they_are_named(conv_fp8, tmp_path):
    report = build_engine(conv_fp8, tmp_path / "a.engine", TensorRTConfig(data_type="fp8"), backend=RTX)
    assert report.compute_capabilities == ["SM89", "SM120"] and report.coverage.kernels.get("fp8", 0) >= 2
    config = TensorRTConfig(data_type="fp8", compute_capabilities=["auto", "SM86"])
    with pytest.raises(EngineError, match="compute_capabilities: SM86 has no FP8.*needs SM89.*Leave SM86 out"):
        build_engine(conv_fp8, tmp_path / "b.engine", config, backend=RTX)
    assert not (tmp_path / "b.engine").exists()


@pytest.mark.usefixtures("rtx")
def test_several_gpus_in_one_file(conv_file, tmp_path):
    config = TensorRTConfig(compute_capabilities=["SM121", "auto", "sm80"])
    report = build_engine(conv_file, tmp_path / "a.engine", config, backend=RTX)
    assert report.compute_capabilities == ["SM121", "SM86", "SM89", "SM120", "SM80"]
    assert json.loads((tmp_path / "a.engine.json").read_text())["compute_capabilities"] == report.compute_capabilities


@pytest.mark.usefixtures("rtx")
def test_what_an_older_gpu_lacks_is_told_with_what_to_do(conv_int8, tmp_path):
    config = TensorRTConfig(data_type="int8", compute_capabilities=["SM75"])
    with pytest.raises(EngineError, match="FP32 GEMM is not supported.*SM75 has no fp32 kernels: leave it out"):
        build_engine(conv_int8, tmp_path / "a.engine", config, backend=RTX)
    # TensorRT for RTX leaves what failed to the next build, which took no INT8 kernel then.
    config = TensorRTConfig(data_type="int8", compute_capabilities=["SM89"])
    assert set(build_engine(conv_int8, tmp_path / "b.engine", config, backend=RTX).kernels) == {"int8"}


@pytest.mark.parametrize(("name", "data_type"), [("conv_file", "fp32"), ("conv_int8", "int8"), ("conv_fp8", "fp8")])
def test_onnxruntime_ends_in_something_that_was_executed(name, data_type, tmp_path, request):
    file = request.getfixturevalue(name)
    report = build_engine(file, tmp_path / "a.engine", TensorRTConfig(data_type=data_type), backend=ORT)
    record = json.loads((tmp_path / "a.engine.json").read_text())
    assert record["built"] and record["executed"] and not record["evaluated"] and record["library"] == "onnxruntime"
    assert record["execution"]["device"] == "cpu" and record["compute_capabilities"] == []
    images = np.random.default_rng(1).random((8, 3, 32, 32), np.float32)
    found, wanted = load_engine(tmp_path / "a.engine")(images), on_source(file, images)
    gap = np.abs(found["summary"] - wanted["summary"]).max() / np.abs(wanted["summary"]).max()
    # Integer kernels round elsewhere; a step of an INT8 activation is 1/127 of its range.
    assert gap < (1e-5 if data_type == "fp32" else 0.02)
    assert report.execution["max_relative_error"] < (1e-5 if data_type == "fp32" else 0.02)


def test_the_int8_file_of_onnxruntime_multiplies_in_int8(vit_int8, vit_fp32, tmp_path):
    report = build_engine(vit_int8, tmp_path / "a.engine", TensorRTConfig(data_type="int8"), backend=ORT)
    kernels, floats = report.coverage.kernels, report.coverage.in_float_kernels
    # The eight linear layers of the blocks at least. A convolution or Gemm without Q behind it stays in floats there.
    assert kernels["int8"] >= 8 and sum(kernels.values()) == 15 and len(floats) == kernels["fp32"]
    assert not any("blocks" in name for name in floats)
    # What onnxruntime itself reports while it runs.
    images = np.zeros((8, 3, 48, 48), np.float32)
    rows = onnxruntime_session.time_layers(report.path, {"data_type": "int8"}, 0, images, 1)
    integer = [row for row in rows if row.kind in _PRODUCTS and _PRODUCTS[row.kind] == "int8"]
    assert len(integer) == kernels["int8"] + report.coverage.others.get("int8", 0)
    assert Counter(row.writes for row in integer) == report.coverage.writing
    # The level of optimization that depends on the CPU may add one.
    assert 0 < report.coverage.requantizing <= sum(row.kind == "QuantizeLinear" for row in rows)
    fp32 = build_engine(vit_fp32.path, tmp_path / "b.engine", TensorRTConfig(), backend=ORT)
    assert report.bytes < 0.5 * fp32.bytes and fp32.coverage.kernels == {"fp32": 15}


@pytest.mark.parametrize("units", [False, True])
def test_a_cpu_on_which_int8_overflows_is_named_in_record_terminal_and_evaluation(
    units, vit_int8, conv_file, tmp_path, capsys, monkeypatch
):
    monkeypatch.setattr(int8_overflow, "has_int8_units", lambda: units)  # this CPU has them or not
    path = tmp_path / "a.engine"
    report = build_engine(vit_int8, path, TensorRTConfig(data_type="int8"), backend=ORT)
    show_engine(report)
    row = Row("engine", "", "", 0, warning=EngineModel(path, "evaluate.models[0].path", "cpu").warning)
    places = ["\n".join(json.loads((tmp_path / "a.engine.json").read_text())["notes"])]
    places += [capsys.readouterr().out, "\n".join(kernel_notes(row))]
    assert [int8_overflow.OVERFLOW in text for text in places] == [not units] * 3
    floats = build_engine(conv_file, tmp_path / "b.engine", TensorRTConfig(), backend=ORT)
    assert int8_overflow.OVERFLOW not in floats.notes


def test_what_a_record_warns_of_is_in_the_evaluation_and_the_chain(vit_int8, tmp_path, monkeypatch):
    monkeypatch.setattr(build, "is_slower", lambda *given: True)  # whichever is slower on this CPU
    monkeypatch.setattr(build, "warnings_of", lambda *given: ["int8 is not the fastest here", "because"])
    section = {"backend": "onnxruntime", "onnx_file": str(vit_int8), "trt_engine": str(tmp_path / "a.engine")}
    spec = load_spec(
        {
            "results_dir": str(tmp_path / "results"),
            "gen_trt_engine": section | {"latency_seconds": 0.05, "tensorrt": {"data_type": "int8"}},
        }
    )
    lines: list[str] = []
    outcome = STAGES[Stage.engine].run(spec, lines.append)
    record = json.loads((tmp_path / "a.engine.json").read_text())
    slower = ["int8 is not the fastest here", "because"]
    assert record["latency"]["warnings"] == outcome.facts["warnings"] == slower
    assert lines == [f"warning: {line}" for line in slower]
    assert outcome.facts["notes"] == record["notes"]
    record["execution"]["warning"] = "it is unlike"
    (tmp_path / "a.engine.json").write_text(json.dumps(record))
    warned = EngineModel(tmp_path / "a.engine", "evaluate.models[0].path", "cpu").warning
    assert warned.endswith("it is unlike; int8 is not the fastest here; because") and "where" not in warned
    record["latency"]["cpu"] = record["execution"]["cpu"] = "another CPU"
    (tmp_path / "a.engine.json").write_text(json.dumps(record))
    assert EngineModel(tmp_path / "a.engine", "evaluate.models[0].path", "cpu").warning.endswith(
        "where it was built (another CPU): it is unlike"
    )


def test_auto_takes_what_there_is_and_says_why(conv_file, tmp_path, monkeypatch):
    pytest.importorskip("tensorrt_rtx_bindings", reason="the `engine` extra is not installed")
    if torch.cuda.is_available():
        pytest.skip("needs a machine without a CUDA device")
    assert library.choose_backend(EngineBackend.auto)[0] is RTX
    monkeypatch.setattr(library, "RTX", ("no_such_trt",))
    report = build_engine(conv_file, tmp_path / "a.engine", TensorRTConfig())
    assert report.backend is ORT and "tensorrt_rtx is not installed" in report.backend_reason
    assert library.choose_backend(RTX)[0] is RTX  # what is named is not replaced


def test_without_tensorrt_the_backend_says_what_to_install(conv_file, tmp_path):
    try:
        import tensorrt  # noqa: F401
    except ImportError:
        with pytest.raises(EngineError, match="no TensorRT can be imported.*pip install.*backend=tensorrt_rtx"):
            build_engine(conv_file, tmp_path / "a.engine", TensorRTConfig(), backend=TENSORRT)
    else:
        pytest.skip("tensorrt is installed")


@pytest.mark.parametrize(
    ("backend", "config", "field", "says"),
    [
        (RTX, {"calibration": CalibrationConfig(cal_cache_file="c")}, "tensorrt.calibration", "radioplat quantize"),
        (RTX, {"timing_cache": "t"}, "timing_cache", "where the engine runs"),
        (ORT, {"calibration": CalibrationConfig(cal_json_file="c")}, "tensorrt.calibration", "radioplat quantize"),
        (ORT, {"timing_cache": "t"}, "timing_cache", "Remove it"),
        (ORT, {"workspace_size": 9}, "tensorrt.workspace_size", "Remove it"),
        (ORT, {"compute_capabilities": ["SM86"]}, "tensorrt.compute_capabilities", "for CPUs"),
    ],
)
@pytest.mark.usefixtures("rtx")
def test_fields_that_a_backend_cannot_act_on_are_refused(conv_int8, tmp_path, backend, config, field, says):
    timing_cache = config.pop("timing_cache", None)
    asked = TensorRTConfig(data_type="int8", **config)
    with pytest.raises(EngineError, match=says) as caught:
        build_engine(conv_int8, tmp_path / "a.engine", asked, backend=backend, timing_cache=timing_cache)
    assert [problem.where for problem in caught.value.problems] == [f"gen_trt_engine.{field}"]


@pytest.mark.parametrize(
    ("name", "data_type", "says"),
    [
        ("conv_int8", "fp32", "quantized layers .3 to int8.*data_type=int8"),
        ("conv_int8", "fp8", "its Q/DQ nodes are int8.*radioplat quantize"),
        ("conv_file", "int8", "no Q/DQ nodes.*radioplat quantize"),
        ("conv_file", "int5", "Valid: fp32, fp16, bf16, int8, fp8"),
    ],
)
def test_the_file_must_hold_the_data_type(name, data_type, says, tmp_path, request):
    with pytest.raises(EngineError, match=f"gen_trt_engine.tensorrt.data_type: .*{says}"):
        build_engine(request.getfixturevalue(name), tmp_path / "a.engine", TensorRTConfig(data_type=data_type))


def test_bf16_is_not_for_cpus(conv_bf16, tmp_path):
    with pytest.raises(EngineError, match="data_type: onnxruntime has no bf16 kernels for CPUs.*fp32 or fp16"):
        build_engine(conv_bf16.path, tmp_path / "a.engine", TensorRTConfig(data_type="bf16"), backend=ORT)
