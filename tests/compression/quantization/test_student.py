"""Students quantized after training: placement by family and by rules, what they say before and after."""

from __future__ import annotations

import copy

import pytest
import skimage
import torch
from torch import nn

import radioplat
from radioplat.compression.pruning.scores import ChannelScore
from radioplat.compression.quantization.quantize_model import quantize_model
from radioplat.errors import DataError, SpecError, WeightsError
from radioplat.models.heads import HeadArchitecture
from radioplat.models.quantized.quantizer import quantizers
from radioplat.models.student.checkpoint import save_student
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.schema.quantize import Calibrator, LayerRule, QuantizeConfig, QuantizeMode, TensorFormat


@pytest.fixture(scope="module")
def batches():
    """Two batches of crops of a photograph, uint8 ``[6, 3, 64, 64]``."""
    picture = torch.from_numpy(skimage.data.astronaut()).permute(2, 0, 1)
    crops = [picture[:, y : y + 64, x : x + 64] for y in range(0, 400, 120) for x in range(0, 400, 140)]
    return [torch.stack(crops[:6]), torch.stack(crops[6:])]


def student(name: str, **changes) -> Student:
    """Seeded, with statistics as training leaves them, and one head."""
    torch.manual_seed(0)
    heads = (HeadArchitecture("t", 8, 8, hidden=16, num_inner=1),)
    made = Student(StudentArchitecture(**{"type": name, "img_size": 64, "heads": heads, **changes})).eval()
    for module in made.modules():
        if isinstance(module, nn.BatchNorm2d):
            module.running_mean.uniform_(-0.1, 0.1)
            module.running_var.uniform_(0.8, 1.2)
            nn.init.uniform_(module.weight, 0.5, 1.5)  # timm starts a ResNet's branches at 0
    return made


VIT = {"kwargs": {"depth": 2, "embed_dim": 48, "num_heads": 3}}
RADIO = ("radio_vit_tiny_patch16", VIT)
SMALL = {"kwargs": {"layers": [1, 1, 1, 1], "channels": [16, 32, 64, 64]}}  # a ResNet


@pytest.mark.parametrize(
    ("name", "changes", "layers", "residuals", "folded"),
    [
        ("resnet18", {}, 20, 8, 20),
        ("vit_tiny_patch16_224", VIT, 9, 0, 0),  # patches, and qkv, proj, fc1, fc2 of two blocks
        (*RADIO, 9, 0, 0),
        ("convnext_atto", {"kwargs": {"depths": [1, 1, 1, 1]}}, 16, 0, 0),
        ("mobilenetv3_small_050", {}, 53, 7, 34),
        ("tf_efficientnet_lite0", {}, 49, 9, 49),
    ],
)
def test_each_family_says_nearly_what_it_said(name, changes, layers, residuals, folded, batches):
    made = quantize_model(student(name, **changes), QuantizeConfig(), batches)
    how = made.model.architecture.quantized
    assert (len(how.layers), len(how.residuals), len(how.folded)) == (layers, residuals, folded)
    assert not any(isinstance(m, nn.BatchNorm2d) for m in made.model.modules())
    assert min(made.cosine.values()) > 0.95 and max(made.cosine.values()) < 1 and not made.idle
    assert set(how.skipped) == {n for n, m in made.model.named_modules() if type(m) is nn.Linear}
    assert all(name.startswith("heads.") for name in how.skipped)
    for name, quantizer in quantizers(made.model).items():
        weight = name.endswith("weight_quantizer")
        assert quantizer.axis == (0 if weight else -1) and float(quantizer.scale.detach().min()) > 0


def test_ranges_are_those_of_the_images(batches):
    """The first layer's range is that of its input, the rest are seen in float."""
    plain = student(*RADIO[:1], **RADIO[1])
    made = quantize_model(plain, QuantizeConfig(), batches).model
    taken: list[torch.Tensor] = []
    plain.backbone.patch_generator.embedder.register_forward_pre_hook(lambda _, args: taken.append(args[0]))
    for images in batches:
        plain(images)
    quantizer = made.backbone.patch_generator.embedder.input_quantizer
    assert torch.allclose(quantizer.amax, torch.cat(taken).abs().max().reshape(1))
    weight = plain.backbone.blocks[1].mlp.fc2.weight
    assert torch.allclose(made.backbone.blocks[1].mlp.fc2.weight_quantizer.amax, weight.abs().amax(1))


@pytest.mark.parametrize("algorithm", list(Calibrator))
def test_calibrators_and_order(algorithm, batches):
    config = QuantizeConfig(algorithm=algorithm, percentile=99)
    plain = student(*RADIO[:1], **RADIO[1])
    made = quantize_model(plain, config, batches)
    again = quantize_model(plain, config, batches[::-1])
    scales, others = ({n: q.scale for n, q in quantizers(m.model).items()} for m in (made, again))
    assert all(torch.allclose(scales[n], others[n], rtol=1e-3) for n in scales)
    most = quantize_model(plain, QuantizeConfig(), batches)
    assert all((q.amax <= quantizers(most.model)[n].amax * (1 + 1e-4)).all() for n, q in quantizers(made.model).items())
    assert min(made.cosine.values()) > 0.95


def rule(name: str, weights: str | None = None, activations: str | None = None) -> LayerRule:
    return LayerRule(name, TensorFormat(weights), TensorFormat(activations))


def test_rules_by_name_and_class(batches):
    config = QuantizeConfig(
        layers=[
            rule("Linear", "int8"),
            rule("blocks.0", "fp8_e4m3fn"),
            rule("*.fc2", "int4"),
            rule("blocks.1.attn", "native"),
        ],
        skip_names=["patch_generator.*"],
        heads=True,
    )
    how = quantize_model(student(*RADIO[:1], **RADIO[1]), config, batches).model.architecture.quantized
    formats = {n.removeprefix("backbone."): (f.weights, f.activations) for n, f in how.layers.items()}
    assert formats == {
        "blocks.0.attn.qkv": ("fp8", "fp8"),
        "blocks.0.attn.proj": ("fp8", "fp8"),
        "blocks.0.mlp.fc1": ("fp8", "fp8"),
        "blocks.0.mlp.fc2": ("int4", "int8"),
        "blocks.1.mlp.fc1": ("int8", "int8"),
        "blocks.1.mlp.fc2": ("int4", "int8"),
        "heads.t.summary.fc1": ("int8", "int8"),
        "heads.t.summary.blocks.0.2": ("int8", "int8"),
        "heads.t.spatial.fc1": ("int8", "int8"),
        "heads.t.spatial.blocks.0.2": ("int8", "int8"),
    }
    assert how.skipped["backbone.patch_generator.embedder"] == "quantize.skip_names has 'patch_generator.*'"
    assert how.skipped["backbone.blocks.1.attn.qkv"] == "rule 'blocks.1.attn' sets native"
    assert how.skipped["heads.t.summary.final.2"] == "a regression"


def test_a_class_alone_is_quantized_and_the_rest_stays(batches):
    how = quantize_model(
        student("resnet18", **SMALL),
        QuantizeConfig(layers=[rule("nn.Conv2d", "int8", "int8")], skip_names=["layer4"]),
        batches,
    ).model.architecture.quantized
    assert len(how.layers) == 10 and len(how.residuals) == 3
    assert {why for n, why in how.skipped.items() if "layer4" in n} == {"quantize.skip_names has 'layer4'"}


def test_weights_alone_and_one_scale_for_all(batches):
    config = QuantizeConfig(mode=QuantizeMode.weight_only_ptq, per_channel=False)
    made = quantize_model(student("resnet18", **SMALL), config, batches).model
    assert all(n.endswith("weight_quantizer") and q.axis == -1 for n, q in quantizers(made).items())
    assert not made.architecture.quantized.residuals


def test_a_classifier_stays_float_unless_it_is_named(batches):
    plain = student("resnet18", heads=(), num_classes=5, **SMALL)
    how = quantize_model(plain, QuantizeConfig(), batches).model.architecture.quantized
    assert how.skipped == {"backbone.model.fc": "a classifier"}
    named = QuantizeConfig(default_layer_dtype="int8", layers=[rule("fc", "int8")])
    assert "backbone.model.fc" in quantize_model(plain, named, batches).model.architecture.quantized.layers


def test_equalization_saves_a_rescaled_student_with_one_scale_a_tensor(batches):
    plain = student("resnet18", heads=(), **SMALL)
    with torch.no_grad():
        for stage in (1, 2, 3, 4):
            for block in getattr(plain.backbone.model, f"layer{stage}"):
                scale = 16 ** torch.linspace(-1, 1, block.conv1.out_channels)
                block.bn1.weight.mul_(scale)
                block.bn1.bias.mul_(scale)
                block.conv2.weight.div_(scale.reshape(1, -1, 1, 1))
    found = {}
    for equalize in (False, True):
        made = quantize_model(plain, QuantizeConfig(equalize=equalize, per_channel=False), batches)
        found[equalize] = made.cosine["spatial"]
        assert len(made.equalized) == 4 * equalize
    assert found[True] > 0.99 and found[True] > found[False] + 0.01


def test_relu6_is_kept_in_what_is_saved(batches, tmp_path):
    made = quantize_model(student("resnet18", heads=(), **SMALL), QuantizeConfig(relu6=True), batches).model
    assert sum(isinstance(m, nn.ReLU6) for m in made.modules()) == 9
    save_student(made, made.state_dict(), tmp_path)
    opened = radioplat.load_student(tmp_path)
    assert torch.equal(opened(batches[0]).spatial, made(batches[0]).spatial)


def test_a_pruned_student_is_quantized_and_a_quantized_one_is_not_pruned(batches, tmp_path):
    from radioplat.compression.pruning.prune import prune_model
    from radioplat.spec.schema.prune import PruneConfig

    small = prune_model(student("resnet18", **SMALL), PruneConfig(amount=0.5), ChannelScore(PruneConfig(), 0), None)[0]
    made = quantize_model(small, QuantizeConfig(), batches)
    assert made.model.backbone.model.layer1[0].conv1.weight.shape[0] == 8 and min(made.cosine.values()) > 0.95
    save_student(made.model, made.model.state_dict(), tmp_path)
    opened = radioplat.load_student(tmp_path)
    assert torch.equal(opened(batches[0]).spatial, made.model(batches[0]).spatial)
    with pytest.raises(SpecError, match="prune.checkpoint: a quantized student cannot be pruned"):
        prune_model(opened, PruneConfig(), ChannelScore(PruneConfig(), 0), None)
    with pytest.raises(SpecError, match="quantize.checkpoint: this student is quantized already"):
        quantize_model(opened, QuantizeConfig(), batches)


def test_layers_of_low_rank_and_zeros_stay_so(batches, tmp_path):
    from radioplat.compression.low_rank import decompose
    from radioplat.compression.pruning.sparsify import sparsify
    from radioplat.spec.schema.low_rank import LowRankConfig
    from radioplat.spec.schema.prune import SparsityConfig, SparsityPattern

    plain, _ = decompose(student(*RADIO[:1], **RADIO[1]), LowRankConfig(rank=12))
    plain, _ = sparsify(plain, SparsityConfig(SparsityPattern.two_of_four))
    made = quantize_model(plain, QuantizeConfig(), batches).model
    save_student(made, made.state_dict(), tmp_path)
    opened = radioplat.load_student(tmp_path)
    assert torch.equal(opened(batches[0]).spatial, made(batches[0]).spatial)
    assert opened.architecture.sparsity == plain.architecture.sparsity and opened.architecture.low_rank
    layer = opened.backbone.blocks[0].mlp.fc1[0]
    assert layer.weight.shape[0] == 12 and layer.weight_quantizer is not None
    rounded = layer.weight_quantizer(layer.weight)
    assert (rounded.unflatten(1, (-1, 4)) == 0).sum(-1).min() >= 2


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"skip_names": ["layer9"]}, r"quantize.skip_names\[0\]: no layer is called 'layer9'"),
        ({"layers": [rule("ConvTranspose2d", "int8")]}, r"quantize.layers\[0\].module_name: no layer is called"),
        ({"default_layer_dtype": "native"}, "quantize.layers: nothing is left to quantize"),
        ({"skip_names": ["*"]}, r"nothing is left to quantize \(.*skip_names has '\*'\)"),
    ],
)
def test_rules_that_meet_nothing(changes, said, batches):
    with pytest.raises(SpecError, match=said):
        quantize_model(student(*RADIO[:1], **RADIO[1]), QuantizeConfig(**changes), batches)


def test_images_that_nothing_can_be_measured_on(batches):
    plain = student(*RADIO[:1], **RADIO[1])
    flat = [torch.full((2, 3, 64, 64), 7, dtype=torch.uint8), torch.zeros(2, 3, 64, 64, dtype=torch.uint8)]
    with pytest.raises(DataError, match="quant_calibration_dataset: all calibration images are of one colour"):
        quantize_model(plain, QuantizeConfig(), flat)
    with pytest.raises(DataError, match="there are no calibration images"):
        quantize_model(plain, QuantizeConfig(), [])
    broken = copy.deepcopy(plain)
    with torch.no_grad():
        broken.backbone.blocks[0].mlp.fc1.bias.fill_(float("inf"))
    with pytest.raises(WeightsError, match="input of .*fc2.input_quantizer is not finite"):
        quantize_model(broken, QuantizeConfig(), batches)


def test_a_norm_that_cannot_be_folded_is_named(batches):
    made = student("resnet18", **SMALL)
    norm = next(name for name, module in made.backbone.named_modules() if isinstance(module, nn.BatchNorm2d))
    assert quantize_model(made, QuantizeConfig(), batches).unfolded == []
    # It does more than normalize: without it, outputs differ, and then nothing is folded.
    made.backbone.get_submodule(norm).register_forward_hook(lambda module, inputs, output: output + 1)
    done = quantize_model(made, QuantizeConfig(), batches)
    assert f"backbone.{norm}" in [name for _, name in done.unfolded]
    assert done.model.architecture.quantized.folded == []
