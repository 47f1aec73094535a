"""Which group a parameter falls into, and what rate it then gets."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from radioplat.errors import SpecError
from radioplat.models.heads import HeadArchitecture
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.optim.optimizer import build_optimizer, learning_rate, set_rates
from radioplat.optim.parameter_groups import parameter_groups, pattern_problems
from radioplat.spec.schema.train import OptimConfig, Policy

RADIO = StudentArchitecture(
    "c_radio_v3_vit_base_patch16_reg4_dinov2",
    dict(embed_dim=16, depth=3, num_heads=2, patch_size=8),
    img_size=32,
    heads=(HeadArchitecture("a", 4, 5, hidden=8),),
)
TIMM = StudentArchitecture("test_vit", img_size=32, num_classes=3, heads=(HeadArchitecture("a", 4),))
CNN = StudentArchitecture("test_resnet", heads=(HeadArchitecture("a", 4),), num_classes=3)


class Inside(nn.Module):
    """As the student is inside a training module."""

    def __init__(self, student: Student) -> None:
        super().__init__()
        self.student = student


def module_of(architecture: StudentArchitecture) -> Inside:
    with torch.device("meta"):
        return Inside(Student(architecture))


def by_name(module: nn.Module, config: OptimConfig, key: str) -> dict[str, object]:
    names = {id(p): n.removeprefix("student.") for n, p in module.named_parameters()}
    return {names[id(p)]: group[key] for group in parameter_groups(module, config) for p in group["params"]}


@pytest.mark.parametrize("architecture", [RADIO, TIMM, CNN], ids=["radio", "timm", "cnn"])
def test_heads_and_classifiers_have_their_own_rate(architecture):
    module = module_of(architecture)
    factors = by_name(module, OptimConfig(lr=0.1, projector_lr=0.4), "factor")
    assert set(factors) == {n for n, _ in module.student.named_parameters()}
    for name, factor in factors.items():
        classifier = name.startswith(tuple(f"backbone.model.{p}" for p in classifier_of(module)))
        expected = 4.0 if name.startswith(("heads.", "classifier.")) or classifier else 1.0
        assert factor == pytest.approx(expected), name
    assert {4.0, 1.0} == {round(f, 9) for f in factors.values()}


def classifier_of(module: Inside) -> tuple[str, ...]:
    return getattr(module.student.backbone, "classifier_prefix", ())


def test_patterns_take_the_first_that_fits():
    config = OptimConfig(lr_mults={"blocks.1.attn": 0.5, "backbone.*": 0.25, "heads.a.": 0.0})
    factors = by_name(module_of(RADIO), config, "factor")
    for name, factor in factors.items():
        expected = 0.0 if name.startswith("heads.") else 0.5 if "blocks.1.attn" in name else 0.25
        assert factor == expected, name


@pytest.mark.parametrize("architecture", [RADIO, TIMM], ids=["radio", "timm"])
def test_layer_decay_falls_towards_the_image(architecture):
    module = module_of(architecture)
    factors = by_name(module, OptimConfig(layer_decay=0.5), "factor")
    blocks = 1 + max(int(n.split("blocks.")[1].split(".")[0]) for n in factors if "blocks." in n)
    for name, factor in factors.items():
        layer = blocks + 1
        if "blocks." in name:
            layer = int(name.split("blocks.")[1].split(".")[0]) + 1
        elif "patch" in name or "embed" in name or "token" in name:
            layer = 0
        assert factor == 0.5 ** (blocks + 1 - layer), name
    assert len(set(factors.values())) == blocks + 2


def test_what_is_not_there_is_named():
    config = OptimConfig(lr_mults={"backbone": 1.0, "bakbone.*": 0.1}, layer_decay=0.9)
    problems = list(pattern_problems(module_of(CNN), config))
    assert [p.where for p in problems] == ["train.optim.lr_mults.bakbone.*", "train.optim.layer_decay"]
    with pytest.raises(SpecError, match="bakbone"):
        build_optimizer(module_of(CNN), config)
    assert not list(pattern_problems(module_of(RADIO), OptimConfig(layer_decay=0.9)))


@pytest.mark.parametrize("warmup", [0.0, 0.5])
@pytest.mark.parametrize("on_updates", [True, False])
def test_the_backbone_rests_while_heads_warm_up(warmup, on_updates):
    config = OptimConfig(
        lr=0.2, policy=Policy.cosine, head_warmup_epochs=1.5, warmup_epochs=warmup, sched_on_updates=on_updates
    )
    groups = parameter_groups(module_of(RADIO), config)
    assert {group["head"] for group in groups} == {True, False}
    for step in range(40):
        rate = set_rates(groups, config, step, 40, 10)
        assert rate == learning_rate(config, step, 40, 10)
        body = {group["lr"] for group in groups if not group["head"]}
        assert {group["lr"] for group in groups if group["head"]} == {rate}
        counted = step if on_updates else step // 10 * 10
        if counted < 15:
            assert body == {0.0}
        elif warmup and counted < 20:
            assert list(body) == pytest.approx([min(rate, 0.2 * (counted - 14) / 5)])
        else:
            assert body == {rate}


def test_factors_multiply_the_schedule():
    config = OptimConfig(lr=0.2, policy=Policy.linear, projector_lr=0.1, lr_mults={"heads.a.summary": 3.0})
    groups = parameter_groups(module_of(RADIO), config)
    rate = set_rates(groups, config, 10, 40, 10)
    assert rate == pytest.approx(0.15)
    assert {round(group["lr"], 9) for group in groups} == {0.15, 0.075, 0.225}


def test_a_resting_parameter_does_not_move():
    torch.manual_seed(0)
    module = Inside(Student(CNN)).train()
    config = OptimConfig(lr=0.1, weight_decay=0.5, head_warmup_epochs=1)
    optimizer = build_optimizer(module, config)
    set_rates(optimizer.param_groups, config, 0, 10, 5)
    before = {n: p.detach().clone() for n, p in module.named_parameters()}
    features = module.student(torch.rand(2, 3, 32, 32))
    (module.student.head("a", features).summary.sum() + features.summary.sum()).backward()
    optimizer.step()
    for name, parameter in module.named_parameters():
        head = name.startswith(("student.heads.", *(f"student.backbone.model.{p}" for p in classifier_of(module))))
        if not head:
            assert torch.equal(parameter, before[name]), name
    assert not torch.equal(module.student.heads["a"].summary.weight, before["student.heads.a.summary.weight"])
