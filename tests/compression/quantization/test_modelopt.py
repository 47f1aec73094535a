"""Ranges that ModelOpt measures, against our own; backends that native has replaced."""

from __future__ import annotations

import builtins

import pytest
import torch
from timm.layers import Conv2dSame

from radioplat.compression.quantization.quantize_model import quantize_model
from radioplat.errors import SpecError
from radioplat.models.heads import HeadArchitecture
from radioplat.models.quantized.quantizer import quantizers
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.checks.tasks.quantize import quantize_problems, replaced_backend
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


@pytest.fixture(scope="module")
def batches():
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, 256, (4, 3, 32, 32), generator=generator, dtype=torch.uint8) for _ in range(2)]


@pytest.fixture(scope="module")
def students():
    torch.manual_seed(0)
    return {"vit": Student(VIT).eval(), "lite": Student(LITE).eval()}


def quantized(student: Student, batches, **asked) -> Student:
    return quantize_model(student, QuantizeConfig(**asked), batches).model


@pytest.mark.parametrize(
    ("fields", "note"),
    [
        ({"backend": "modelopt.pytorch"}, "was not called; native was used, its minmax ranges are the same"),
        ({"backend": "torchao"}, "torchao is no longer a backend; native was used, its minmax ranges are the same"),
        ({"backend": "torchao", "algorithm": Calibrator.mse}, "its mse ranges differ a little"),
        ({"backend": "modelopt.pytorch", "algorithm": Calibrator.entropy}, None),
        ({"backend": "native"}, None),
    ],
)
def test_a_replaced_backend_has_the_native_ranges_and_a_note(students, batches, fields, note):
    notes = replaced_backend(QuantizeConfig(**fields))
    assert [note in text for text in notes] == [True] * bool(note)
    if note:
        own = quantizers(quantized(students["vit"], batches, **{**fields, "backend": "native"}))
        other = quantizers(quantized(students["vit"], batches, **fields))
        assert all(torch.equal(own[name].scale, other[name].scale) for name in own) and len(own) == 10


def test_percentiles_clip_activations_alone(students, batches):
    most = quantizers(quantized(students["vit"], batches))
    asked = {"backend": "modelopt.pytorch", "algorithm": Calibrator.percentile, "percentile": 99.0}
    found = quantizers(quantized(students["vit"], batches, **asked))
    inputs = [n for n in found if n.endswith("input_quantizer")]
    ratios = torch.stack([found[n].scale / most[n].scale for n in inputs])
    assert (ratios <= 1.0001).all() and ratios.mean() < 0.97 and ratios.min() > 0.2
    assert all(torch.equal(found[name].scale, most[name].scale) for name in set(found) - set(inputs))


def test_percentiles_are_nearly_ours(students, batches):
    asked = {"algorithm": Calibrator.percentile, "percentile": 99.0}
    own = quantizers(quantized(students["vit"], batches, **asked))
    borrowed = quantizers(quantized(students["vit"], batches, **asked, backend="modelopt.pytorch"))
    for name, quantizer in own.items():
        torch.testing.assert_close(borrowed[name].scale, quantizer.scale, rtol=0.05, atol=0, msg=name)


def test_a_place_that_modelopt_does_not_know_is_named(students, batches, monkeypatch):
    """Its default configuration leaves layers out by their names and says nothing."""
    from modelopt.torch.quantization.nn import QuantModuleRegistry

    from radioplat.compression.quantization import modelopt

    made = quantized(students["lite"], batches)
    if Conv2dSame in QuantModuleRegistry:
        QuantModuleRegistry.unregister(Conv2dSame)
    monkeypatch.setattr(QuantModuleRegistry, "register", lambda known: lambda kind: kind)
    with pytest.raises(SpecError, match="44 of 49 quantizers: none at backbone.model.blocks.1.0"):
        modelopt.modelopt_amax(
            made, lambda student: student(batches[0]), QuantizeConfig(algorithm=Calibrator.percentile)
        )


def test_without_modelopt_the_error_names_the_package_to_install(students, batches, monkeypatch):
    real = builtins.__import__

    def missing(name, *args, **kwargs):
        if name.partition(".")[0] == "modelopt":
            raise ModuleNotFoundError("No module named 'modelopt'")
        return real(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(SpecError, match=r"quantize.backend: backend .* pip install 'radioplat\[quantize\]'"):
        quantized(students["vit"], batches, backend="modelopt.pytorch", algorithm=Calibrator.percentile)


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
