"""Schedules against closed forms; every trainable parameter in one group."""

from __future__ import annotations

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import nn

from radioplat.errors import SpecError
from radioplat.models.heads import HeadArchitecture
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.optim.optimizer import MOMENTS, build_optimizer, learning_rate
from radioplat.spec.schema.train import OptimConfig, OptimizerName, Policy


def rates(total: int = 40, per_epoch: int = 10, **config) -> list[float]:
    return [learning_rate(OptimConfig(lr=2.0, **config), step, total, per_epoch) for step in range(total)]


def test_linear_and_cosine():
    for policy, curve in ((Policy.linear, lambda s: 1 - s), (Policy.cosine, lambda s: (1 + math.cos(math.pi * s)) / 2)):
        assert rates(policy=policy) == pytest.approx([2.0 * curve(step / 40) for step in range(40)])
        found = rates(policy=policy, policy_params={"min_lr": 0.5})
        assert found == pytest.approx([0.5 + 1.5 * curve(step / 40) for step in range(40)])
        assert learning_rate(OptimConfig(lr=2.0, policy=policy, policy_params={"min_lr": 0.5}), 40, 40, 10) == 0.5


def test_step_and_multistep_count_epochs():
    found = rates(policy=Policy.step, policy_params={"step_size": 2, "gamma": 0.5})
    assert found == [2.0] * 20 + [1.0] * 20
    found = rates(policy=Policy.multistep, policy_params={"milestones": [1, 2.5], "gamma": 0.1})
    assert found == pytest.approx([2.0] * 10 + [0.2] * 15 + [0.02] * 15)


def test_soft_start_annealing():
    """Straight lines in the logarithm: up, level, down."""
    found = rates(policy=Policy.soft_start_annealing, policy_params={"soft_start": 0.25, "annealing": 0.5})
    logs = [math.log10(rate / 2.0) for rate in found]
    assert logs[:10] == pytest.approx([-2 + 2 * step / 10 for step in range(10)])
    assert logs[10:21] == pytest.approx([0.0] * 11)
    assert logs[20:] == pytest.approx([-2 * step / 20 for step in range(20)])
    config = OptimConfig(lr=2.0, policy=Policy.soft_start_annealing, policy_params={"min_lr": 0.5})
    assert learning_rate(config, 0, 40, 10) == pytest.approx(0.5) == learning_rate(config, 40, 40, 10)
    assert [rate == pytest.approx(2.0) for rate in rates(policy=config.policy)] == [
        4 <= step <= 28 for step in range(40)
    ]


@pytest.mark.parametrize("params", [{"soft_start": 0, "annealing": 1}, {"soft_start": 0.5, "annealing": 0.5}])
def test_soft_start_annealing_at_its_edges(params):
    found = rates(policy=Policy.soft_start_annealing, policy_params=params)
    assert found[20] == pytest.approx(2.0) and all(0 < rate <= 2.0 + 1e-9 for rate in found)
    if not params["soft_start"]:
        assert found == pytest.approx([2.0] * 40)


WITH_WARM_UP = [policy for policy in Policy if policy is not Policy.soft_start_annealing]


@pytest.mark.parametrize("policy", WITH_WARM_UP)
def test_warm_up(policy):
    found = rates(policy=policy, warmup_epochs=0.5)
    assert found[:5] == pytest.approx([2.0 * (step + 1) / 5 for step in range(5)])
    assert found[5] == pytest.approx(2.0)
    if policy in (Policy.linear, Policy.cosine):  # the curve spans what is left
        plain = [learning_rate(OptimConfig(lr=2.0, policy=policy), step, 35, 10) for step in range(35)]
        assert found[5:] == pytest.approx(plain)


def test_between_epochs_only():
    found = rates(policy=Policy.cosine, sched_on_updates=False)
    assert found == pytest.approx([rates(policy=Policy.cosine)[step // 10 * 10] for step in range(40)])


@given(st.sampled_from(WITH_WARM_UP), st.integers(1, 60), st.integers(1, 20), st.floats(0, 3), st.floats(0, 1))
def test_never_above_the_peak_nor_below_the_floor(policy, total, per_epoch, warmup, low):
    curved = policy in (Policy.linear, Policy.cosine)
    low, params = (low, {"min_lr": low}) if curved else (0.0, {})
    config = OptimConfig(lr=1.0, policy=policy, policy_params=params, warmup_epochs=warmup)
    warm = round(warmup * per_epoch)
    found = [learning_rate(config, step, total, per_epoch) for step in range(total)]
    assert all(0 < rate <= 1 + 1e-9 or (rate == 0 and not low) for rate in found)
    assert all(rate >= low - 1e-9 for rate in found[warm:])
    assert found[warm:] == sorted(found[warm:], reverse=True) and found[:warm] == sorted(found[:warm])


STUDENT = StudentArchitecture(
    "c_radio_v3_vit_base_patch16_reg4_dinov2",
    dict(embed_dim=16, depth=1, num_heads=2, patch_size=8),
    num_class_tokens=2,
    img_size=32,
    heads=(HeadArchitecture("a", 4, 5, hidden=8),),
)


@pytest.mark.parametrize("optimizer", list(OptimizerName))
def test_every_trainable_parameter_once(optimizer):
    student = Student(STUDENT)
    student.backbone.blocks.requires_grad_(False)
    groups = build_optimizer(student, OptimConfig(optim=optimizer, weight_decay=0.3)).param_groups
    grouped = [id(p) for group in groups for p in group["params"]]
    assert len(grouped) == len(set(grouped))
    assert set(grouped) == {id(p) for p in student.parameters() if p.requires_grad}
    decay = {id(p): group["weight_decay"] for group in groups for p in group["params"]}
    for name, parameter in student.named_parameters():
        if parameter.requires_grad:
            plain = parameter.ndim < 2 or "pos_embed" in name or "cls_token" in name
            assert decay[id(parameter)] == (0.0 if plain else 0.3), name


def test_shared_parameters_are_counted_once():
    a, b = nn.Linear(3, 3), nn.Linear(3, 3)
    b.weight = a.weight
    groups = build_optimizer(nn.ModuleList([a, b]), OptimConfig()).param_groups
    assert sum(len(group["params"]) for group in groups) == 3


def test_skipped_names():
    module = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 2)})
    for patterns in (["a.weight"], ["a.*"], ["a."]):
        decayed, plain = build_optimizer(module, OptimConfig(skip_names=patterns)).param_groups
        assert decayed["params"] == [module["b"].weight] and len(plain["params"]) == 3


def test_nothing_to_train_is_said():
    with pytest.raises(SpecError, match="frozen") as caught:
        build_optimizer(nn.Linear(2, 2).requires_grad_(False), OptimConfig())
    assert caught.value.problems[0].where == "model.backbone.freeze_backbone"


@pytest.mark.parametrize("optimizer", list(MOMENTS))
def test_the_named_moments_are_what_torch_keeps(optimizer):
    module = nn.Linear(2, 2)
    built = build_optimizer(module, OptimConfig(optim=optimizer, lr=0.1, momentum=0.5, betas=[0.8, 0.9]))
    module(torch.ones(1, 2)).sum().backward()
    built.step()
    for state in built.state.values():
        assert {k for k, v in state.items() if torch.is_tensor(v) and v.ndim} == set(MOMENTS[optimizer])
    expected = (0.8, 0.9) if optimizer is not OptimizerName.sgd else None
    assert built.param_groups[0].get("betas") == expected and built.param_groups[0]["lr"] == 0.1


@given(st.integers(2, 700), st.data(), st.sampled_from([OptimizerName.adamw, OptimizerName.adam, OptimizerName.sgd]))
def test_an_update_has_the_same_bits_wherever_tensors_are_cut(size, data, name):
    """Exact sums with ZeRO 1 need it: which values a worker updates depends on how many workers there are."""
    place = data.draw(st.integers(1, size - 1))
    whole = torch.randn(size, generator=torch.Generator().manual_seed(size))
    parts = [[whole.clone()], [whole[:place].clone(), whole[place:].clone()]]
    for part in parts:
        module = nn.ParameterList(nn.Parameter(tensor) for tensor in part)
        optimizer = build_optimizer(module, OptimConfig(optim=name, weight_decay=0.05))
        for step in range(3):
            gradient = torch.randn(size, generator=torch.Generator().manual_seed(step))
            for parameter, own in zip(module, gradient.split([p.numel() for p in module]), strict=True):
                parameter.grad = own.clone()
            optimizer.step()
        part[:] = [parameter.detach() for parameter in module]
    assert torch.equal(parts[0][0], torch.cat(parts[1]))
