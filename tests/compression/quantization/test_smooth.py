"""Factors of channels by ModelOpt's SmoothQuant and AWQ, in the normalization before a layer."""

from __future__ import annotations

import copy

import pytest
import torch

from radioplat.compression.quantization.placement import place
from radioplat.compression.quantization.quantize_model import quantize_model
from radioplat.compression.quantization.smooth import find_norm_pairs, smooth
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.checks.tasks.quantize import quantize_problems
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.quantize import QuantizeConfig, QuantizeMode

pytestmark = [pytest.mark.timeout(120), pytest.mark.filterwarnings("ignore")]
SIZE, DEPTH = 32, 2
VIT = StudentArchitecture("vit_tiny_patch16_224", {"depth": DEPTH, "embed_dim": 64, "num_heads": 2}, img_size=SIZE)
GATED = StudentArchitecture(
    "eva02_base_patch14_224", {"depth": 1, "img_size": 28, "embed_dim": 48, "num_heads": 3}, img_size=28
)
SMOOTHQUANT = {"backend": "modelopt.pytorch", "backend_kwargs": {"quant_cfg": "INT8_SMOOTHQUANT_CFG"}}
AWQ = {
    "backend": "modelopt.pytorch",
    "backend_kwargs": {"quant_cfg": "INT4_AWQ_CFG"},
    "mode": QuantizeMode.weight_only_ptq,
    "default_layer_dtype": "int4",
}
FOLLOWING = [f"backbone.model.blocks.{i}.{name}" for i in range(DEPTH) for name in ("attn.qkv", "mlp.fc1")]


@pytest.fixture(scope="module")
def batches():
    generator = torch.Generator().manual_seed(0)
    return [torch.randint(0, 256, (4, 3, SIZE, SIZE), generator=generator, dtype=torch.uint8) for _ in range(2)]


@pytest.fixture(scope="module")
def student():
    """A ViT with a few channels that are far larger than the others, as large transformers have."""
    torch.manual_seed(0)
    made = Student(VIT).eval()
    with torch.no_grad():
        for block in made.backbone.model.blocks:
            for norm, linear in ((block.norm1, block.attn.qkv), (block.norm2, block.mlp.fc1)):
                norm.weight[::16] *= 60
                linear.weight[:, ::16] /= 60
    return made


def features(model, batches) -> list[torch.Tensor]:
    with torch.no_grad():
        return [tensor for images in batches for _, tensor in model.feature_probe(images)]


def test_layers_behind_a_normalization_are_found(student):
    pairs = find_norm_pairs(student, torch.rand(2, 3, SIZE, SIZE))
    assert [linear for _, linear in pairs] == FOLLOWING
    before = copy.deepcopy(student.state_dict())
    find_norm_pairs(student, torch.rand(2, 3, SIZE, SIZE))
    assert all(torch.equal(before[name], tensor) for name, tensor in student.state_dict().items())


def test_a_normalization_that_two_layers_read_stays_as_it_is():
    """EVA's gate and value read the same one."""
    linears = [linear for _, linear in find_norm_pairs(Student(GATED).eval(), torch.rand(2, 3, 28, 28))]
    assert not any("mlp.fc1" in name for name in linears)


def test_factors_are_modelopts_and_outputs_in_floats_stay(student, batches):
    """With alpha 1, as in ModelOpt's configuration, every channel of the layer's input then reaches 1."""
    config, peaks = QuantizeConfig(**SMOOTHQUANT), {}
    made = copy.deepcopy(student)
    placement = place(made, config, set(FOLLOWING) | {"backbone.model.blocks.0.mlp.fc2"})

    def run(model) -> None:
        for images in batches:
            model.run_all(images)

    with torch.no_grad():
        assert smooth(made, config, placement, torch.rand(2, 3, SIZE, SIZE), run) == FOLLOWING
    for ours, wanted in zip(features(made, batches), features(student, batches), strict=True):
        assert (ours - wanted).abs().max() < 1e-4 * wanted.abs().max()
    for name in FOLLOWING:

        def note(_, given, name=name):
            peaks.setdefault(name, []).append(given[0].detach().abs().flatten(0, -2).amax(0))

        made.get_submodule(name).register_forward_pre_hook(note)
    features(made, batches)
    for name in FOLLOWING:
        peak = torch.stack(peaks[name]).amax(0)
        torch.testing.assert_close(peak, torch.ones_like(peak), rtol=1e-3, atol=0)


@pytest.mark.parametrize("asked", [SMOOTHQUANT, AWQ], ids=["smoothquant", "awq"])
def test_features_come_nearer_to_the_float_ones(student, batches, asked):
    fields = {name: value for name, value in asked.items() if not name.startswith("backend")}
    plain = quantize_model(student, QuantizeConfig(**fields), batches)
    done = quantize_model(student, QuantizeConfig(**asked), batches)
    assert plain.smoothed == [] and done.smoothed == FOLLOWING
    assert 1 - done.cosine["summary"] < (0.2 if asked is SMOOTHQUANT else 0.9) * (1 - plain.cosine["summary"])


@pytest.mark.parametrize(
    ("changes", "where", "message"),
    [
        ({"quant_cfg": "NVFP4_DEFAULT_CFG"}, "quant_cfg", "is for other number formats"),
        ({"quant_cfg": "INT8_DEFAULT_CFG"}, "quant_cfg", "is what the backend native does"),
        ({"quant_cfg": "INT4_AWQ_CFG"}, "quant_cfg", "for int4 weights and float activations, not for int8 weights"),
        ({"quant_cfg": "INT8_SMOOTHQUANT_CFG", "alpha": 0}, "alpha", "above 0, at most 1"),
        ({"quant_cfg": "INT8_SMOOTHQUANT_CFG", "alpha": 0.5}, None, None),
        ({"quant_cfg": "INT8_SMOOTHQUANT_CFG", "beta": 1}, "beta", "no such option"),
        ({"alpha": 0.5}, "quant_cfg", "a configuration of ModelOpt is missing"),
    ],
)
def test_options_are_checked_by_field(changes, where, message):
    given = {"quantize": {"backend": "modelopt.pytorch", "backend_kwargs": changes}}
    problems = [p for p in quantize_problems(load_spec(given)) if p.where.startswith("quantize.backend_kwargs")]
    if where is None:
        assert problems == []
        return
    assert problems[0].where == f"quantize.backend_kwargs.{where}" and message in problems[0].message
