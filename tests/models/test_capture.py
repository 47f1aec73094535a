"""Outputs of named modules, taken while a model runs and never after."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from radioplat.errors import SpecError
from radioplat.models.capture import as_features, captured, require_modules


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2))
        self.pair = Pair()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.pair(self.body(x))["first"]


class Pair(nn.Module):
    def forward(self, x: torch.Tensor) -> dict:
        return {"count": 3, "first": 2 * x, "second": x}


def hooks(model: nn.Module) -> int:
    return sum(len(m._forward_hooks) for m in model.modules())


def test_outputs_with_their_gradients_and_no_hook_left():
    model, x = Model(), torch.randn(5, 3)
    with captured(model, ["body.0", "pair"]) as found:
        y = model(x)
    assert torch.equal(found["pair"], y) and torch.equal(found["body.0"], model.body[0](x))
    found["body.0"].sum().backward()
    assert model.body[0].weight.grad is not None and model.body[2].weight.grad is None
    assert hooks(model) == 0
    model(x)
    assert torch.equal(found["pair"], y), "what runs later is not noted"


def test_no_hook_is_left_by_a_forward_that_fails():
    model = Model()
    with pytest.raises(RuntimeError), captured(model, ["body.2", "pair"]):
        model(torch.randn(5, 7))
    assert hooks(model) == 0


def test_a_name_that_is_not_there_is_told_with_its_nearest():
    require_modules(model := Model(), {"here": "body.2", "there": "pair"})
    field = "distill.bindings[0].student_module_name"
    with pytest.raises(SpecError, match=r"no module 'bdy.2'") as caught:
        require_modules(model, {"here": "body.2", field: "bdy.2", "there": "pears"})
    assert [problem.where for problem in caught.value.problems] == [field, "there"]
    assert "body.2" in caught.value.problems[0].hint


@pytest.mark.parametrize(
    ("shape", "expected"), [((2, 5), (2, 5)), ((2, 5, 3, 4), (2, 3, 4, 5)), ((2, 3, 3, 5), (2, 3, 3, 5))]
)
def test_vectors_and_maps(shape, expected):
    assert as_features(torch.zeros(shape), (3, 4)).shape == expected


def test_tokens_lose_their_prefix_and_become_rows():
    tokens = torch.arange(2 * 14 * 5.0).reshape(2, 14, 5)
    found = as_features(tokens, (3, 4))
    assert torch.equal(found[1, 2, 3], tokens[1, 13]) and torch.equal(found[0, 0, 0], tokens[0, 2])
    assert as_features(tokens[:, :9], (3, 4)).shape == (2, 3, 3, 5)
    assert as_features(tokens[:, :5], (3, 4)).shape == (2, 1, 5, 5)
