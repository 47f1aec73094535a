"""Ranges that ModelOpt and torchao measure, against our own."""

from __future__ import annotations

import builtins

import pytest
import torch
from timm.layers import Conv2dSame

from radioplat.compression.quantization.student import quantize_student
from radioplat.errors import SpecError
from radioplat.models.heads import HeadArchitecture
from radioplat.models.quantized.quantizer import quantizers
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.checks.tasks.quantize import quantize_problems
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.quantize import Calibrator, QuantizeConfig

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore")]
VIT = StudentArchitecture(
    "vit_tiny_patch16_224",
    {"depth": 1, "embed_dim": 48, "num_heads": 3},
    img_size=32,
    heads=(HeadArchitecture("t", 8, 8, hidden=16),),
)
# TensorFlow's padding, depthwise convolutions, and residual branches, which ModelOpt has no name for.
LITE = StudentArchitecture("tf_efficientnet_lite0", {}, img_size=32)
OTHERS = ("modelopt.pytorch", "torchao")


@pytest.fixture(scope="module")
def batches():
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, 256, (4, 3, 32, 32), generator=generator, dtype=torch.uint8) for _ in range(2)]


@pytest.fixture(scope="module")
def students():
    torch.manual_seed(0)
    return {"vit": Student(VIT).eval(), "lite": Student(LITE).eval()}


def quantized(student: Student, batches, **asked) -> Student:
    return quantize_student(student, QuantizeConfig(**asked), batches).model


@pytest.mark.parametrize("backend", OTHERS)
@pytest.mark.parametrize(("name", "dtype"), [("vit", "int8"), ("vit", "fp8"), ("lite", "int8")])
def test_the_largest_magnitude_is_the_same_for_all(students, batches, backend, name, dtype):
    asked = {"default_layer_dtype": dtype, "heads": True}
    own = quantizers(quantized(students[name], batches, **asked))
    borrowed = quantizers(quantized(students[name], batches, **asked, backend=backend))
    assert own.keys() == borrowed.keys() and len(own) > 10
    for key, quantizer in own.items():
        torch.testing.assert_close(borrowed[key].scale, quantizer.scale, rtol=1e-5, atol=0, msg=key)


def test_other_methods_clip(students, batches):
    student = students["vit"]
    most = quantizers(quantized(student, batches))
    for backend, algorithm in (("modelopt.pytorch", Calibrator.percentile), ("torchao", Calibrator.mse)):
        found = quantizers(quantized(student, batches, backend=backend, algorithm=algorithm, percentile=99.0))
        inputs = [n for n in found if n.endswith("input_quantizer")]
        ratios = torch.stack([found[n].scale / most[n].scale for n in inputs])
        assert (ratios <= 1.0001).all() and ratios.mean() < 0.97 and ratios.min() > 0.2
        for name in set(found) - set(inputs):
            torch.testing.assert_close(found[name].scale, most[name].scale, rtol=1e-5, atol=0)


def test_percentiles_are_nearly_ours(students, batches):
    asked = {"algorithm": Calibrator.percentile, "percentile": 99.0}
    own = quantizers(quantized(students["vit"], batches, **asked))
    borrowed = quantizers(quantized(students["vit"], batches, **asked, backend="modelopt.pytorch"))
    for name, quantizer in own.items():
        torch.testing.assert_close(borrowed[name].scale, quantizer.scale, rtol=0.05, atol=0, msg=name)


def test_a_place_that_modelopt_does_not_know_is_named(students, batches, monkeypatch):
    """Its default configuration leaves layers out by their names and says nothing."""
    from modelopt.torch.quantization.nn import QuantModuleRegistry

    from radioplat.compression.quantization.backends import modelopt

    made = quantized(students["lite"], batches)
    if Conv2dSame in QuantModuleRegistry:
        QuantModuleRegistry.unregister(Conv2dSame)
    monkeypatch.setattr(QuantModuleRegistry, "register", lambda known: lambda kind: kind)
    with pytest.raises(SpecError, match="88 quantizers where 98 are asked for: none at backbone.model.blocks.1.0"):
        modelopt.modelopt_amax(made, lambda student: student(batches[0]))


@pytest.mark.parametrize("backend", OTHERS)
def test_without_the_toolkit_one_sentence_says_what_to_install(students, batches, backend, monkeypatch):
    real, package = builtins.__import__, backend.partition(".")[0]

    def missing(name, *args, **kwargs):
        if name.partition(".")[0] == package:
            raise ModuleNotFoundError(f"No module named {package!r}")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(SpecError, match=r"quantize.backend: backend .* pip install 'radioplat\[quantize\]'"):
        quantized(students["vit"], batches, backend=backend)


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"backend": "torchao", "algorithm": "entropy"}, "quantize.algorithm"),
        ({"backend": "modelopt.pytorch", "algorithm": "mse"}, "quantize.algorithm"),
        (
            {"backend": "torchao", "algorithm": "mse", "default_layer_dtype": "fp8"},
            "quantize.algorithm",
        ),
        ({"backend": "torchao", "backend_kwargs": {"a": 1}}, "quantize.backend_kwargs"),
        ({"backend": "modelopt.onnx", "mode": "qat"}, "quantize.mode"),
        ({"backend": "modelopt.onnx", "equalize": True}, "quantize.equalize"),
        ({"backend": "modelopt.onnx", "default_layer_dtype": "int4"}, "quantize.default_layer_dtype"),
    ],
)
def test_what_a_backend_cannot_do_is_named(fields, where):
    teacher = {"distill": {"teacher": [{"name": "t"}]}} if fields.get("mode") == "qat" else {}
    problems = list(quantize_problems(load_spec({"quantize": fields, **teacher})))
    assert [p.where for p in problems] == [where]
