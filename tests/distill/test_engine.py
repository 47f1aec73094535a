"""Clipping by its definition, on every engine."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from radioplat.distill import ds_compat
from radioplat.distill.engine import build_engine
from radioplat.spec.load import load_spec

pytestmark = [pytest.mark.usefixtures("process_group"), pytest.mark.filterwarnings("ignore::FutureWarning")]
MICRO = 2


class Line(nn.Module):
    """``mean(x w)``: the gradient of a micro-batch is its mean input."""

    def __init__(self) -> None:
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.zeros(6, 3)), nn.Parameter(torch.zeros(3))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """A scalar, fp32."""
        return (x.to(self.weight.dtype) @ self.weight + self.bias).float().mean(0).sum()


@pytest.mark.parametrize(
    ("precision", "stage"),
    [("fp32", 0), ("fp32", 1), ("fp32", 2), ("fp32", 3), ("bf16", 1), ("bf16", 2), ("bf16", 3)],
)
@pytest.mark.parametrize("limit", [0.0, 0.01, 1.5, 1e3])
def test_the_norm_over_all_parameters_and_micro_batches_is_limited(precision, stage, limit):
    """With SGD without momentum at rate 1 a step is the clipped gradient."""
    optim = {"optim": "sgd", "lr": 1.0, "momentum": 0.0, "weight_decay": 0.0}
    train = {"precision": precision, "zero_stage": stage, "clip_grad_norm": limit, "optim": optim}
    spec = load_spec({"train": train, "dataset": {"batch_size": 4}})
    module = Line()
    engine = build_engine(module, spec, MICRO)
    batches = torch.randn(MICRO, 4, 6, generator=torch.Generator().manual_seed(0)).bfloat16().float()
    for place, batch in enumerate(batches):
        engine.set_gradient_accumulation_boundary(place == MICRO - 1)
        engine.backward(engine(batch))
        engine.step()
    slope = batches.mean((0, 1))
    gradient = {"weight": slope[:, None].expand(6, 3), "bias": torch.ones(3)}
    norm = torch.cat([g.flatten() for g in gradient.values()]).norm()
    assert 1.5 < norm < 1e3
    scale = min(1.0, limit / float(norm)) if limit else 1.0
    state = ds_compat.full_state(engine, dict(module.named_parameters()), ())
    tolerance = {"rtol": 1e-4, "atol": 1e-6} if precision == "fp32" else {"rtol": 2e-2, "atol": 1e-3 * scale}
    for name, expected in gradient.items():
        torch.testing.assert_close(state[name], -scale * expected, **tolerance)
