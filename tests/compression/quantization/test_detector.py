"""Detectors quantized after training: where quantizers go, what is said before and after, the same from the file."""

from __future__ import annotations

import pytest
import skimage
import torch
from torch import nn

from benchmarks.tasks_quantize import made_uneven
from radioplat.compression.quantization.quantize_model import quantize_model
from radioplat.errors import SpecError
from radioplat.models.detectors.base import Detector, DetectorArchitecture, detector_on
from radioplat.models.detectors.checkpoint import load_detector, save_detector
from radioplat.models.quantized.quantizer import in_float, quantizers
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.schema.quantize import Calibrator, LayerRule, QuantizeConfig, TensorFormat

pytest.importorskip("transformers")

RTDETR = dict(
    d_model=32, encoder_hidden_dim=32, encoder_ffn_dim=32, decoder_ffn_dim=32, decoder_layers=2, num_queries=20,
    encoder_attention_heads=2, decoder_attention_heads=2, num_denoising=10, hidden_expansion=0.5,
)  # fmt: skip
DINO = dict(
    d_model=32, num_queries=20, encoder_layers=1, decoder_layers=2, encoder_ffn_dim=32, decoder_ffn_dim=32,
    encoder_attention_heads=2, decoder_attention_heads=2, num_denoising=10,
)  # fmt: skip
OPTIONS = {"rtdetr": RTDETR, "rtdetr_v2": RTDETR, "dino": DINO}
RESNET = StudentArchitecture("resnet10t", img_size=64)
VIT = StudentArchitecture("vit_tiny_patch16_224", {"depth": 1, "embed_dim": 48, "num_heads": 3}, img_size=64)


@pytest.fixture(scope="module")
def batches():
    """Two batches of crops of a photograph, uint8 ``[6, 3, 64, 64]``."""
    picture = torch.from_numpy(skimage.data.astronaut()).permute(2, 0, 1)
    crops = [picture[:, y : y + 64, x : x + 64] for y in range(0, 400, 120) for x in range(0, 400, 140)]
    return [torch.stack(crops[:6]), torch.stack(crops[6:])]


def made(kind: str, student: StudentArchitecture) -> Detector:
    """Seeded, with statistics as training leaves them."""
    torch.manual_seed(0)
    detector = Detector(DetectorArchitecture(student, 3, kind, OPTIONS[kind])).eval()
    for module in detector.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.1, 0.1)
            module.running_var.uniform_(0.8, 1.2)
            nn.init.uniform_(module.weight, 0.5, 1.5)
    return detector


@pytest.mark.parametrize(
    ("kind", "student"), [("rtdetr", RESNET), ("rtdetr_v2", VIT), ("dino", RESNET)], ids=["rtdetr", "v2_vit", "dino"]
)
def test_a_detector_says_nearly_what_it_said_and_comes_back_from_its_file(kind, student, batches, tmp_path):
    detector = made(kind, student)
    done = quantize_model(detector, QuantizeConfig(), batches)
    quantized = done.model
    assert min(done.cosine.values()) > 0.99 and max(done.cosine.values()) < 1
    assert not any(isinstance(m, nn.BatchNorm2d) for m in quantized.modules())
    save_detector(quantized, tmp_path)
    again = load_detector(tmp_path)
    assert again.architecture == quantized.architecture
    with torch.no_grad():
        ours, theirs = quantized(batches[0]), again(batches[0])
        assert torch.equal(ours.logits, theirs.logits) and torch.equal(ours.pred_boxes, theirs.pred_boxes)
        with in_float(again):  # BatchNorm folded, nothing rounded
            assert torch.allclose(again(batches[0]).logits, detector(batches[0]).logits, atol=1e-3)


def test_what_is_a_regression_a_class_or_a_place_stays_float(batches):
    how = quantize_model(made("rtdetr_v2", RESNET), QuantizeConfig(), batches).model.architecture.quantized
    assert {name.removeprefix("detr.model."): why for name, why in how.skipped.items()} == {
        "enc_score_head": "a classifier",
        "enc_bbox_head.layers.2": "a regression",
        "decoder.query_pos_head.layers.0": "reads boxes",
        **{f"decoder.layers.{i}.encoder_attn.sampling_offsets": "sampling positions of attention" for i in range(2)},
        **{f"decoder.class_embed.{i}": "a classifier" for i in range(2)},
        **{f"decoder.bbox_embed.{i}.layers.2": "a regression" for i in range(2)},
    }


def rule(name: str, dtype: str) -> LayerRule:
    return LayerRule(name, TensorFormat(dtype), TensorFormat())


def test_rules_and_skip_names_reach_every_part(batches):
    asked = QuantizeConfig(
        layers=[
            rule("Conv2d", "int8"),
            rule("decoder.layers.1", "fp8_e4m3fn"),
            rule("decoder.class_embed.1", "int8"),  # by its whole name: also what stays float otherwise
            rule("decoder.bbox_embed", "native"),
        ],
        skip_names=["layer1", "encoder.aifi*", "encoder_input_proj.0"],
    )
    form = quantize_model(made("rtdetr_v2", RESNET), asked, batches).model.architecture
    layers = {name.removeprefix("detr.model."): formats.weights for name, formats in form.quantized.layers.items()}
    assert {n: f for n, f in layers.items() if n.startswith("decoder.")} == {
        "decoder.class_embed.1": "int8",
        **{f"decoder.layers.1.self_attn.{name}_proj": "fp8" for name in "qkvo"},
        **{f"decoder.layers.1.encoder_attn.{n}": "fp8" for n in ("attention_weights", "value_proj", "output_proj")},
        **{f"decoder.layers.1.mlp.fc{i}": "fp8" for i in (1, 2)},
    }
    assert "encoder_input_proj.1.0" in layers and "encoder_input_proj.0.0" not in layers
    student = form.student.quantized
    assert "backbone.model.layer2.0.conv1" in student.layers
    assert student.skipped["backbone.model.layer1.0.conv1"] == "quantize.skip_names has 'layer1'"


def test_a_quantized_student_is_a_backbone_and_keeps_its_quantizers(batches):
    torch.manual_seed(0)
    student = quantize_model(Student(RESNET).eval(), QuantizeConfig(), batches).model
    detector = detector_on(student, 3, **RTDETR).eval()
    assert detector.architecture.student.quantized == student.architecture.quantized
    with torch.no_grad():
        assert torch.equal(detector.maps(batches[0])[-1].permute(0, 2, 3, 1), student(batches[0]).spatial)
    done = quantize_model(detector, QuantizeConfig(algorithm=Calibrator.mse), batches).model
    assert done.architecture.student.quantized == student.architecture.quantized
    theirs, ours = quantizers(student), quantizers(done.student)
    assert theirs.keys() == ours.keys() and all(torch.equal(ours[n].scale, q.scale) for n, q in theirs.items())
    assert not any(name.startswith("student.") for name in done.architecture.quantized.layers)
    with pytest.raises(SpecError, match="quantized already"):
        quantize_model(done, QuantizeConfig(), batches)


def test_the_benchmark_makes_channels_uneven_and_nothing_else(batches):
    detector = made("rtdetr_v2", RESNET)
    uneven = made_uneven(detector, 16.0, 1)
    with torch.no_grad():
        assert torch.allclose(uneven(batches[0]).logits, detector(batches[0]).logits, atol=1e-4)
    lost, told = (1 - quantize_model(d, QuantizeConfig(), batches).cosine["maps"] for d in (uneven, detector))
    assert lost > 3 * told
    undone = quantize_model(uneven, QuantizeConfig(equalize=True), batches)
    assert 1 - undone.cosine["maps"] < 2 * told
