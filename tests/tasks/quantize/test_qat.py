"""A student with quantizers under training: its scales learn, on one worker and on two, at every ZeRO stage."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from forked import load
from torch import nn

from radioplat.compression.quantization.quantize_model import quantize_model
from radioplat.design.models import design_models
from radioplat.design.quantized import count_quantizers, quantized_problems
from radioplat.design.student import compile_backbone
from radioplat.models.pretrained.initial_weights import start_student
from radioplat.models.quantized.quantizer import quantizers
from radioplat.models.student.checkpoint import save_student
from radioplat.optim.optimizer import build_optimizer
from radioplat.optim.parameter_groups import parameter_groups
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.quantize import QuantizeConfig
from radioplat.spec.schema.train import OptimConfig, OptimizerName

cases = load(Path(__file__).with_name("qat_cases.py"))

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore::FutureWarning")]
FOUND: dict[int, dict[str, Any]] = {}


@pytest.fixture
def found(process_group, tmp_path_factory) -> dict[int, dict[str, Any]]:
    """By number of workers, then by case."""
    if not FOUND:
        FOUND[1] = {str(case): cases.train(case) for case in {case.plain for case in cases.MATRIX}}
        FOUND[2] = cases.start_two(tmp_path_factory.mktemp("ranks"))
    return FOUND


def scales_of(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value for name, value in state.items() if name.endswith("_quantizer.scale")}


@pytest.mark.proof
@pytest.mark.parametrize("case", cases.MATRIX, ids=str)
def test_every_stage_on_two_workers_is_one_worker(found, case):
    """Rounding makes small differences jump, so the losses are compared, not each weight."""
    plain, mine = found[1][str(case.plain)], found[2][str(case)]
    tolerance = 1e-3 if case.precision == "fp32" else 2e-2
    torch.testing.assert_close(mine["losses"], plain["losses"], rtol=tolerance, atol=0)
    for name, value in scales_of(plain["end"]).items():
        distance = float((mine["end"][name] - value).norm() / value.norm())
        assert distance < tolerance, f"{name}: {distance}"


@pytest.mark.parametrize("case", [cases.FP32[0], cases.BF16[0], cases.LAMB[0].plain], ids=str)
def test_the_loss_falls_and_scales_move(found, case):
    run = found[1][str(case)]
    assert run["losses"][-1] < 0.8 * run["losses"][0]
    before, after = (scales_of(run[at]) for at in ("half", "end"))
    assert len(after) == 2 * 8 + 2  # eight linear layers and the embedder, weight and input
    moved = [name for name in after if not torch.equal(before[name], after[name])]
    assert len(moved) > 0.9 * len(after)
    assert all((value > 0).all() for value in after.values())


def test_bf16_keeps_fp32_scales(found):
    for world, case in ((1, cases.BF16[0]), (2, cases.BF16[1])):
        for value in scales_of(found[world][str(case)]["end"]).values():
            assert value.dtype is torch.float32
            assert not torch.equal(value, value.bfloat16().float())
    fp32, bf16 = (found[1][str(case)]["losses"] for case in (cases.FP32[0], cases.BF16[0]))
    torch.testing.assert_close(bf16.mean(), fp32.mean(), rtol=0.1, atol=0)


@pytest.mark.parametrize("case", [cases.FP32[0], cases.BF16[0]], ids=str)
def test_a_resumed_run_is_the_unbroken_one(found, case):
    whole = found[1][str(case)]
    later = cases.train(case, whole["half"])
    assert torch.equal(later["losses"], whole["losses"][cases.HALF :])
    assert all(torch.equal(later["end"][name], value) for name, value in whole["end"].items())


def test_scales_have_a_group_of_their_own():
    student = cases.quantized_student()
    names = {id(p): n for n, p in student.named_parameters()}
    for optim, relative in ((OptimizerName.adamw, True), (OptimizerName.lamb, True), (OptimizerName.sgd, False)):
        groups = parameter_groups(student, OptimConfig(optim=optim, weight_decay=0.1))
        mine = {names[id(p)]: group for group in groups for p in group["params"]}
        scales = [group for name, group in mine.items() if name.endswith("_quantizer.scale")]
        assert len(scales) == 18
        assert all(g["weight_decay"] == 0 and not g["adapt"] and g["relative"] is relative for g in scales)
        assert not any(g["relative"] for n, g in mine.items() if not n.endswith("_quantizer.scale"))


class Scale(nn.Module):
    """One quantizer's scale, and a weight of the same value."""

    def __init__(self, value: float) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.tensor([value]))
        self.input_quantizer = nn.Module()
        self.input_quantizer.scale = nn.Parameter(torch.tensor([value]))


@pytest.mark.parametrize("optim", ["adamw", "adam", "lamb"])
@pytest.mark.parametrize("value", [1e-6, 1e-3, 20.0])
def test_steps_are_relative(optim, value):
    """The closed form: under a gradient that does not change, Adam's every step is the rate."""
    module, lr, steps = Scale(value), 0.05, 7
    optimizer = build_optimizer(module, OptimConfig(optim=OptimizerName(optim), lr=lr, weight_decay=0.0))
    for _ in range(steps):
        module.weight.grad, module.input_quantizer.scale.grad = torch.ones(1), torch.ones(1)
        optimizer.step()
    expected = torch.tensor([value]) * torch.tensor(-lr * steps).exp()
    torch.testing.assert_close(module.input_quantizer.scale.detach(), expected, rtol=1e-3, atol=0)
    torch.testing.assert_close(module.weight.detach(), torch.tensor([value - lr * steps]), rtol=1e-3, atol=1e-6)


def gradients(change=lambda student: None) -> dict[str, torch.Tensor]:
    module = cases.Module().eval()
    change(module.student)
    module(cases.images(0)).backward()
    return {name: p.grad for name, p in module.named_parameters()}


def recompute(student) -> None:
    student.train().backbone.patch_generator.crops_positions = False  # a draw
    student.backbone.set_grad_checkpointing()


@pytest.mark.proof
def test_recomputed_and_compiled_blocks_learn_the_same():
    plain = gradients()
    assert all(grad is not None and grad.abs().max() > 0 for name, grad in plain.items() if "quantizer" in name)
    recomputed = gradients(recompute)
    compiled = gradients(lambda student: compile_backbone(student.backbone, "aot_eager"))
    for found in (recomputed, compiled):
        for name, grad in plain.items():
            if grad is not None:
                torch.testing.assert_close(found[name], grad, rtol=1e-4, atol=1e-6, msg=name)


def test_a_folded_batch_norm_stays_folded(tmp_path):
    torch.manual_seed(0)
    plain = cases.Student(cases.StudentArchitecture("tf_efficientnet_lite0", img_size=32)).eval()
    pixels = torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8)
    made = quantize_model(plain, QuantizeConfig(), [pixels]).model
    save_student(made, made.state_dict(), tmp_path)
    for kind in (None, "tf_efficientnet_lite0"):
        changes = {"pretrained_model_path": str(tmp_path)}
        backbone = {} if kind is None else {"type": kind}
        spec = load_spec({"model": {"backbone": backbone}, "dataset": {"img_size": 32}, "train": changes})
        begun = start_student(spec, design_models(spec, "train").architecture)
        assert not [m for m in begun.modules() if isinstance(m, nn.BatchNorm2d)]
        assert len(quantizers(begun)) == len(quantizers(made)) == 2 * 49 + 9
        wanted = frozenset({"summary"})
        with torch.no_grad():
            assert torch.equal(begun.eval()(pixels, wanted).summary, made(pixels, wanted).summary)


def test_what_cannot_be_is_named_by_field():
    student = cases.quantized_student()
    spec = load_spec(None, ["train.precision=fp16", "train.damp=0.1"])
    assert [p.where for p in quantized_problems(spec, student)] == ["train.precision", "train.damp"]
    assert not list(quantized_problems(spec, cases.Student(cases.PLAIN)))
    assert not list(quantized_problems(load_spec(None), student))
    assert count_quantizers(student) == "18 quantizers: 9 on weights (int4), 9 on activations (int8)"
    assert count_quantizers(cases.Student(cases.PLAIN)) == ""
