"""BatchNorm over a step: the closed form, however the step is cut."""

from __future__ import annotations

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.utils.checkpoint import checkpoint

from radioplat.training.engine.batchnorm_state import BatchNormStatistics


def batches(count: int, seed: int = 0) -> list[torch.Tensor]:
    generator = torch.Generator().manual_seed(seed)
    return [1 + 2 * torch.randn(6, 3, 2, 2, generator=generator) for _ in range(count)]


def statistics(batch: torch.Tensor) -> torch.Tensor:
    rows = batch.transpose(0, 1).flatten(1)
    return torch.stack([rows.mean(1), rows.var(1)])


def buffers(layer: nn.Module) -> torch.Tensor:
    return torch.stack([layer.running_mean, layer.running_var])


def step(running: BatchNormStatistics, layer: nn.Module, micro_batches: list, commit: bool = True) -> None:
    for batch in micro_batches:
        layer(batch)
    running.step(commit)


@pytest.mark.parametrize("momentum", [0.1, 0.5])
def test_closed_form_over_several_steps(momentum):
    layer = nn.BatchNorm2d(3, momentum=momentum)
    running, expected = BatchNormStatistics(layer), buffers(layer).clone()
    for start in range(3):
        micro_batches = batches(4, start)
        step(running, layer, micro_batches)
        mean = torch.stack([statistics(b) for b in micro_batches]).mean(0)
        expected = (1 - momentum) * expected + momentum * mean
        torch.testing.assert_close(buffers(layer), expected)
    assert int(layer.num_batches_tracked) == 3


@settings(max_examples=20, deadline=None)
@given(st.permutations(range(6)), st.lists(st.booleans(), min_size=6, max_size=6))
def test_the_order_of_micro_batches_and_padding_change_nothing(order, pad):
    layers = [nn.BatchNorm2d(3) for _ in range(2)]
    first, second = (BatchNormStatistics(layer) for layer in layers)
    micro_batches = batches(6)
    step(first, layers[0], micro_batches)
    for place, padded in zip(order, pad, strict=True):
        if padded:  # its pixels may be anything
            second.counting = False
            layers[1](torch.full((6, 3, 2, 2), float("nan")))
        second.counting = True
        layers[1](micro_batches[place])
    second.step()
    torch.testing.assert_close(buffers(layers[1]), buffers(layers[0]))
    assert int(layers[1].num_batches_tracked) == int(layers[0].num_batches_tracked) == 1


def test_one_micro_batch_is_what_torch_does():
    ours, plain = nn.BatchNorm2d(3), nn.BatchNorm2d(3)
    running = BatchNormStatistics(ours)
    for batch in batches(3):
        step(running, ours, [batch])
        plain(batch)
    torch.testing.assert_close(buffers(ours), buffers(plain))


@pytest.mark.parametrize("kind", [nn.BatchNorm1d, nn.BatchNorm2d])
def test_backward_is_torchs(kind):
    torch.manual_seed(0)
    ours, plain = kind(3), kind(3)
    BatchNormStatistics(ours)
    inputs = [torch.randn(6, 3, *[2] * (kind is nn.BatchNorm2d) * 2) for _ in range(2)]
    for layer in (ours, plain):
        sum(layer(x).pow(3).sum() for x in inputs).backward()
    assert float(plain.weight.grad.norm()) > 1
    assert torch.equal(ours.weight.grad, plain.weight.grad) and torch.equal(ours.bias.grad, plain.bias.grad)


def test_a_cumulative_average():
    ours, plain = nn.BatchNorm2d(3, momentum=None), nn.BatchNorm2d(3, momentum=None)
    running = BatchNormStatistics(ours)
    for batch in batches(4):
        step(running, ours, [batch])
        plain(batch)
    torch.testing.assert_close(buffers(ours), buffers(plain))


def test_within_a_step_the_buffers_rest():
    layer = nn.BatchNorm2d(3)
    BatchNormStatistics(layer)
    before = buffers(layer).clone()
    for batch in batches(2):
        layer(batch)
        assert torch.equal(buffers(layer), before) and int(layer.num_batches_tracked) == 0


def test_a_skipped_step_leaves_no_trace():
    layers = [nn.BatchNorm2d(3) for _ in range(2)]
    quiet, skipping = (BatchNormStatistics(layer) for layer in layers)
    before = buffers(layers[1]).clone()
    step(skipping, layers[1], [torch.full((6, 3, 2, 2), float("nan")), *batches(1, 9)], commit=False)
    assert torch.equal(buffers(layers[1]), before)
    for running, layer in zip((quiet, skipping), layers, strict=True):
        step(running, layer, batches(2))
    assert torch.equal(buffers(layers[0]), buffers(layers[1]))


def test_layers_that_did_not_run_do_not_move():
    module = nn.ModuleDict({"used": nn.BatchNorm2d(3), "unused": nn.BatchNorm2d(3), "frozen": nn.BatchNorm2d(3).eval()})
    running = BatchNormStatistics(module)
    for batch in batches(2):
        module["frozen"](module["used"](batch))
    running.step()
    for name in ("unused", "frozen"):
        assert torch.equal(buffers(module[name]), torch.tensor([[0.0] * 3, [1.0] * 3])), name
    assert not torch.equal(buffers(module["used"])[0], torch.zeros(3))


def test_recomputation_in_backward_does_not_count_twice():
    layer = nn.BatchNorm2d(3)
    running, micro_batches = BatchNormStatistics(layer), batches(2)
    for batch in micro_batches:
        checkpoint(layer, batch.requires_grad_(), use_reentrant=False).sum().backward()
    running.step()
    mean = torch.stack([statistics(b.detach()) for b in micro_batches]).mean(0)
    torch.testing.assert_close(buffers(layer), 0.9 * torch.tensor([[0.0] * 3, [1.0] * 3]) + 0.1 * mean)


def test_bf16_buffers_do_not_wear_the_values_down():
    layer = nn.BatchNorm2d(3)
    running = BatchNormStatistics(nn.ModuleDict({"bn": layer}))
    layer.bfloat16()
    running.sync()
    for start in range(40):
        step(running, layer, [batch.bfloat16() for batch in batches(1, start % 2)])
    mean = torch.stack([statistics(batches(1, s)[0].bfloat16().float()) for s in range(2)]).mean(0)
    exact = running.state_dict()
    assert exact["bn.running_mean"].dtype is torch.float32
    found = torch.stack([exact["bn.running_mean"], exact["bn.running_var"]])
    torch.testing.assert_close(found, mean, rtol=5e-2, atol=5e-2)
    assert torch.equal(found.bfloat16(), buffers(layer))


def test_sync_keeps_the_exact_values_or_takes_new_ones():
    layer = nn.BatchNorm2d(3)
    with torch.no_grad():
        layer.running_mean.copy_(torch.tensor([0.1, 0.2, 0.3]))
    running = BatchNormStatistics(nn.Sequential(layer))
    layer.bfloat16()
    running.sync()
    assert torch.equal(running.state_dict()["0.running_mean"], torch.tensor([0.1, 0.2, 0.3]))
    layer.running_mean.fill_(2.0)
    running.sync()
    assert torch.equal(running.state_dict()["0.running_mean"], torch.full((3,), 2.0))


def test_no_batch_norm_at_all():
    running = BatchNormStatistics(nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2, track_running_stats=False)))
    running.step()
    running.sync()
    assert running.state_dict() == {}
