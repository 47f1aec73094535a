"""Static INT8 for CPUs, of a real convolutional net."""

from __future__ import annotations

import logging

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, numpy_helper

from radioplat.common.cpu_threads import has_int8_units
from radioplat.errors import EngineError
from radioplat.exporting.deploy.cpu_int8 import quantize_for_cpu
from radioplat.exporting.onnx.export import export_onnx
from radioplat.exporting.qdq import int8_overflow
from radioplat.models.student.student import Student
from radioplat.spec.schema.export import CpuQuantization, CpuTarget

from .conftest import CNN, SIZE


@pytest.fixture(scope="module")
def floats(tmp_path_factory):
    torch.manual_seed(0)
    path = tmp_path_factory.mktemp("cpu") / "cnn.onnx"
    return export_onnx(Student(CNN).eval(), path, height=SIZE, width=SIZE).path


@pytest.fixture(scope="module")
def batches():
    generator = np.random.default_rng(0)
    return [generator.random((4, 3, SIZE, SIZE), np.float32) for _ in range(3)]


@pytest.mark.parametrize("target", CpuTarget)
def test_types_and_bits_are_those_of_the_cpu(target, floats, batches, tmp_path, caplog):
    with caplog.at_level(logging.WARNING):
        report = quantize_for_cpu(floats, tmp_path / "int8.onnx", CpuQuantization.static, target, batches)
    assert not caplog.records
    assert report.layers == report.quantized == 15 and report.images == 4 and report.target == target.value
    assert report.bytes < 0.4 * report.fp32_bytes
    overflows = target is not CpuTarget.x86 and not has_int8_units()
    assert bool(report.warning) == overflows and "export.cpu_target=x86" in (report.warning or int8_overflow.OVERFLOW)
    if not overflows:
        assert report.cosine > 0.999
    model = onnx.load(report.path)
    tensors = {t.name: t for t in model.graph.initializer}
    weights = [t for t in tensors.values() if t.data_type == TensorProto.INT8 and len(t.dims) == 4]
    highest = max(np.abs(numpy_helper.to_array(t).astype(int)).max() for t in weights)
    assert len(weights) == 15 and highest == (64 if target is CpuTarget.x86 else 127)
    zeros = {tensors[n.input[2]].data_type for n in model.graph.node if n.op_type == "QuantizeLinear"}
    assert zeros == {TensorProto.INT8 if target is CpuTarget.arm else TensorProto.UINT8}


def test_dynamic_is_for_linear_layers(floats, batches, tmp_path):
    with pytest.raises(EngineError, match=r"only convolutions.*Use export.cpu=static"):
        quantize_for_cpu(floats, tmp_path / "a.onnx", CpuQuantization.dynamic, CpuTarget.arm, batches)
    assert list(tmp_path.iterdir()) == []
