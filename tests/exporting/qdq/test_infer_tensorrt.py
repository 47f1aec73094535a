"""The bundle's TensorRT runner: what can be checked of it without a GPU."""

from __future__ import annotations

import ast
import json
from pathlib import Path

import numpy as np
import onnxruntime
import pytest

from radioplat.cli.main import main
from radioplat.exporting.deploy import infer_tensorrt
from radioplat.exporting.deploy.bundle import SAMPLE, Bundled, write_bundle

VERIFIED = {
    "verified": "student.engine",
    "library": "tensorrt",
    "version": "10.3.0",
    "machine": "NVIDIA Jetson AGX Orin Developer Kit",
    "shape": [1, 3, 224, 224],
    "latency_ms": {"p50": 1.25, "p90": 1.5, "p99": 2.0, "calls": 200},
    "least_cosine": {"summary": 0.9991},
}


def test_every_name_of_tensorrt_s_that_it_uses_is_in_the_bindings():
    trt = pytest.importorskip("tensorrt_rtx_bindings", reason="the `engine` extra is not installed")
    tree = ast.parse(Path(infer_tensorrt.__file__).read_text(encoding="utf-8"))
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    owners = {"_runtime": trt.Runtime, "_engine": trt.ICudaEngine, "_context": trt.IExecutionContext}
    checked = set()
    for node in calls:
        text = ast.unparse(node)
        if text.startswith("tensorrt."):
            name, *rest = text.split(".")[1:]
            target = getattr(trt, name)
            assert all(hasattr(target, part) for part in rest), text
            checked.add(text)
        elif isinstance(node.value, ast.Attribute) and node.value.attr in owners:
            assert hasattr(owners[node.value.attr], node.attr), text
            checked.add(text)
    assert {"tensorrt.Runtime", "self._context.execute_async_v3", "self._engine.get_tensor_mode"} <= checked


def test_the_sample_has_the_features_that_onnxruntime_computes(vit_fp32, tmp_path):
    size = vit_fp32.inputs["images"][2]
    content = Bundled(
        *(vit_fp32.path, vit_fp32.path, [], None, vit_fp32.inputs, vit_fp32.outputs, (size, size), (1, 1, 4), 16),
        *((0.5,) * 3, (0.5,) * 3, None, "fp32", [], True),
    )
    folder = write_bundle(tmp_path / "bundle", content)
    assert json.loads((folder / "preprocessing.json").read_text())["engine"] == "vit.engine"
    assert (folder / "verify.sh").stat().st_mode & 0o111 and (folder / "infer_tensorrt.py").is_file()
    served = (folder / "triton/vit/config.pbtxt").read_text()
    assert (
        "max_batch_size: 4" in served and f'name: "images" data_type: TYPE_FP32 dims: [ 3, {size}, {size} ]' in served
    )
    sample = np.load(folder / SAMPLE)
    session = onnxruntime.InferenceSession(str(folder / "vit.onnx"), providers=["CPUExecutionProvider"])
    (summary,) = session.run(["summary"], {"images": sample["images"].astype(np.float32) / 255})
    assert infer_tensorrt.cosine(sample["summary"], summary) > 0.99999
    assert infer_tensorrt.cosine(sample["summary"], -summary) < -0.99999


def test_what_verify_printed_is_read_back(tmp_path, capsys):
    path = tmp_path / "verified.json"
    path.write_text("&&&& PASSED TensorRT.trtexec\n" + json.dumps(VERIFIED) + "\n")
    assert main(["profile", str(path)]) == 0
    lines = " ".join(capsys.readouterr().out.split())
    assert "on NVIDIA Jetson AGX Orin Developer Kit: 1 images in 1.25 ms" in lines and "0.99910" in lines
    path.write_text("{}")
    assert main(["profile", str(path)]) == 1 and "verify.sh" in capsys.readouterr().err
