"""A save behind the steps is the one that stops training, byte for byte; and what becomes of it when ranks fail."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from forked import load, run_ranks

from radioplat.models.weights.manifest import MANIFEST
from radioplat.training.checkpoints.checkpoint import newest, read_checkpoint

ranks = load(Path(__file__).with_name("save_ranks.py"))
pytestmark = [pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore::FutureWarning")]
FILES = {"student.safetensors", "heads.safetensors", "ema.safetensors", "optimizer.safetensors", "hooks.safetensors"}


@pytest.mark.parametrize("world", [pytest.param(1, marks=pytest.mark.proof), 2])
def test_every_file_is_the_same_with_every_engine(world, tmp_path):
    run_ranks(ranks.both_ways, tmp_path, world=world, seconds=500)
    for engine in ranks.ENGINES:
        saved = [newest(tmp_path / engine / way) for way in ("at_once", "behind")]
        assert [state.global_step for _, state in saved] == [ranks.SAVED] * 2
        one, other = (json.loads((path / MANIFEST).read_text()) for path, _ in saved)
        assert one == other and set(one) == FILES | {"state.json"}, engine
        weights, moments = read_checkpoint(saved[0][0])
        assert set(moments) < {f"{name}.{kind}" for name in weights for kind in ("exp_avg", "exp_avg_sq")}
        assert any(value.count_nonzero() for value in moments.values())


def test_all_ranks_end_if_one_cannot_copy(tmp_path):
    first, second = run_ranks(ranks.one_cannot_copy, tmp_path / "distill", seconds=200)
    assert first == second and first.startswith("agreed True: "), (first, second)
    assert "rank 1 could not copy its weights: MemoryError: no pinned memory" in first
    assert newest(tmp_path / "distill")[1].global_step == 1


def test_a_rank_that_is_killed_leaves_the_checkpoint_before(tmp_path):
    first, _ = run_ranks(ranks.one_is_killed, tmp_path / "distill", seconds=200)
    assert "newest model_epoch_000_step_00001, fatal: True" in first
    assert newest(tmp_path / "distill")[1].global_step == 1
    left = [path.name for path in (tmp_path / "distill").iterdir() if path.is_dir() and not path.is_symlink()]
    assert left == ["model_epoch_000_step_00001"]
