"""Exact sums with DeepSpeed at ZeRO 0 and 1: bit for bit what ``ddp`` with exact sums learns."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from radioplat.spec.schema.dataset import DatasetConfig
from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.train import EngineName, OptimConfig, OptimizerName, Precision, Reduction, TrainConfig
from radioplat.training.engine.engine import LARGEST
from radioplat.training.engine.registry import build_engine

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
MICRO_BATCHES, STEPS, BAD, LARGE, DISCARDED = 3, 6, 2, 3, 4
CASES = pytest.mark.parametrize(("precision", "stage"), [("fp32", 0), ("fp32", 1), ("bf16", 0), ("bf16", 1)])


def engine_of(name: str, precision: str, stage: int = 0, optimizer: str = "adamw", clip: float = 0.0):
    """An engine around a new module; the weights that it begins with are always the same."""
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(7, 33), nn.GELU(), nn.LayerNorm(33), nn.Linear(33, 5))
    module[2].unused = nn.Linear(3, 3)
    train = TrainConfig(
        engine=EngineName(name), precision=Precision(precision), zero_stage=stage, reduction=Reduction.exact,
        optim=OptimConfig(optim=OptimizerName(optimizer), weight_decay=0.05), clip_grad_norm=clip,
    )  # fmt: skip
    spec = Spec(train=train, dataset=DatasetConfig(batch_size=2))
    spec.train.global_batch_size = 2 * MICRO_BATCHES
    return build_engine(module, spec, MICRO_BATCHES), module


def learn(engine, module: nn.Module, steps: range = range(STEPS)) -> tuple[dict[str, torch.Tensor], list[str]]:
    """Weights and moments after ``steps``, and what became of each; one is not finite, one large, one discarded."""
    became = []
    for group in engine.param_groups:
        group["lr"] = 1e-3
    for step in steps:
        for repeat in range(3):
            for number in range(MICRO_BATCHES):
                inputs = torch.randn(2, 7, generator=torch.Generator().manual_seed(step * 10 + number))
                loss = engine(inputs.to(module[0].weight.dtype)).float().square().mean()
                loss = loss * (float("nan") if step == BAD and number == 1 else 1e7 if step == LARGE else 1.0)
                last = number == MICRO_BATCHES - 1
                engine.backward(loss, last=last)
                if step != DISCARDED or not last:
                    engine.step()
            if step == DISCARDED:
                engine.discard_gradients()
                became.append("discarded")
                break
            if not engine.must_repeat():
                became.append(("applied" if engine.was_step_applied() else "refused") + f" after {repeat}")
                break
    names = dict(module.named_parameters())
    return {kind: engine.gather_values(names, values) for kind, values in engine.values(("exp_avg",)).items()}, became


@CASES
def test_it_learns_what_ddp_learns(process_group, precision, stage):
    expected, theirs = learn(*engine_of("ddp", precision))
    engine, module = engine_of("deepspeed", precision, stage)
    found, became = learn(engine, module)
    assert became == theirs
    assert became[BAD] == "refused after 0" and became[LARGE] == "applied after 1"
    for kind, values in expected.items():
        for name, value in values.items():
            assert torch.equal(value, found[kind][name]), f"{kind} of {name}"
    assert engine.scales()[LARGEST].max() > 0
    engine.close()
    assert all(parameter.grad is None for parameter in module.parameters())


@CASES
def test_gradients_are_clipped_as_with_ddp(process_group, precision, stage):
    """By whole tensors, where ``ddp`` takes norms of larger pieces, so the last bits may differ."""
    expected, _ = learn(*engine_of("ddp", precision, optimizer="sgd", clip=0.05), range(2))
    found, _ = learn(*engine_of("deepspeed", precision, stage, optimizer="sgd", clip=0.05), range(2))
    free, _ = learn(*engine_of("deepspeed", precision, stage, optimizer="sgd"), range(2))
    for name, value in expected["weights"].items():
        torch.testing.assert_close(found["weights"][name], value, rtol=1e-6, atol=1e-8)
    assert not all(torch.equal(value, free["weights"][name]) for name, value in found["weights"].items())


@CASES
def test_it_goes_on_from_the_state_of_another_engine(process_group, precision, stage):
    whole, _ = learn(*engine_of("ddp", precision))
    engine, module = engine_of("ddp", precision)
    learn(engine, module, range(2))
    names = dict(module.named_parameters())
    moments = ("exp_avg", "exp_avg_sq")
    kinds = {kind: engine.gather_values(names, values) for kind, values in engine.values(moments).items()}
    state = {name: value.clone() for name, value in kinds["weights"].items()} | engine.scales()
    state |= {f"{name}.{moment}": kinds[moment][name].clone() for moment in moments for name in names}
    other, its = engine_of("deepspeed", precision, stage)
    with torch.no_grad():
        for name, parameter in its.named_parameters():
            parameter.copy_(state[name])
    other.load_full_state(dict(its.named_parameters()), moments, state, 2)
    found, _ = learn(other, its, range(2, STEPS))
    for name, value in whole["weights"].items():
        torch.testing.assert_close(found["weights"][name], value, rtol=0, atol=1e-6)
