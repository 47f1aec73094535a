"""Whole tensors from ZeRO's pieces on two ranks: which they are, and how many messages it takes."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from forked import run_ranks
from torch import nn

from radioplat.spec.loading.load import load_spec
from radioplat.training.engine import zero_gather
from radioplat.training.engine.registry import build_engine
from radioplat.training.loop import process_group

pytestmark = pytest.mark.filterwarnings("ignore::FutureWarning")
CASES = [(precision, stage) for precision in ("fp32", "bf16") for stage in (1, 2, 3)]


class Layers(nn.Module):
    """Sizes that two ranks cannot share evenly."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.Linear(3 + i, 4 + i) for i in range(7))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Mean square of the last layer."""
        x = x.to(self.layers[0].weight.dtype)
        for layer in self.layers:
            x = layer(x)
        return x.float().square().mean()


def work(folder: Path) -> None:
    """Two steps of each case; then everything that this rank gathered, and the messages that it took."""
    torch.set_num_threads(1)
    process_group.join("gloo")
    found = {}
    for precision, stage in CASES:
        torch.manual_seed(0)
        module = Layers()
        spec = load_spec({"train": {"precision": precision, "zero_stage": stage}, "dataset": {"batch_size": 2}})
        engine = build_engine(module, spec, 1)
        names = dict(module.named_parameters())
        shapes = {name: getattr(p, "ds_shape", p.shape) for name, p in names.items()}
        for _ in range(2):
            engine.backward(engine(torch.ones(2, 3)))
            engine.step()
        sent: list[str] = []
        with pytest.MonkeyPatch.context() as patch:
            for name in ("all_reduce", "reduce", "all_gather", "all_gather_into_tensor", "broadcast", "send", "recv"):
                real = getattr(dist, name)

                def counted(*given, real=real, name=name, sent=sent, **named):
                    sent.append(name)
                    return real(*given, **named)

                patch.setattr(dist, name, counted)
            into = {name: torch.zeros(shape) for name, shape in shapes.items()}
            engine.copy_values(names, engine.masters(), into)
            state = engine.full_state(names, ("exp_avg", "exp_avg_sq"))
            together = list(sent)
            patch.setattr(zero_gather, "BUCKET", 60)
            pieces = {name: torch.zeros(shape) for name, shape in shapes.items()}
            engine.copy_values(names, engine.masters(), pieces)
        found[precision, stage] = into, pieces, state, together, len(sent) - len(together)
        engine.close()
    torch.save(found, folder / f"{dist.get_rank()}.pt")


@pytest.mark.timeout(300)
def test_all_parameters_travel_in_few_messages(tmp_path):
    run_ranks(work, tmp_path, seconds=240)
    first, second = (torch.load(tmp_path / f"{rank}.pt") for rank in (0, 1))
    whole = first["fp32", 1][0]
    for case in CASES:
        into, pieces, state, together, messages = first[case]
        # The second rank says that it has copied its pieces, and sends a message of each kind.
        assert together == ["all_reduce", "recv", "recv", "recv", "recv"] and 1 < messages < len(into), case
        assert second[case][3] == ["all_reduce", "send", "send", "send", "send"], case
        for name, value in into.items():
            assert torch.equal(value, second[case][0][name]) and torch.equal(value, pieces[name])
            assert torch.equal(value, state[name]) and state[f"{name}.exp_avg"].shape == value.shape
        assert second[case][2] == {}
        if case[0] == "fp32":
            torch.testing.assert_close(into, whole)
