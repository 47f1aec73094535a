"""States of step hooks in a checkpoint: where earlier versions put them, and users' own beside them."""

from __future__ import annotations

import dataclasses
import json

import pytest
import torch
from safetensors.torch import save_file

from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.models.weights.model_format import EMA_FILE
from radioplat.training.checkpoints.checkpoint import HOOKS, LOSSES, OPTIMIZER, commit, examine, snapshot
from radioplat.training.checkpoints.hook_states import files_of, read_states, update_run_state
from radioplat.training.checkpoints.run_state import STATE, RunState

BUILT_IN = {
    "non_finite": {"quarantined": ["a"]},
    "loss_spikes": {"recent_losses": [1.0, 2.0], "rollbacks": 1},
    "teacher_cost": {"teacher_cost": {"a": {"images": 3}}},
    "dealing": {"micro_batch_seconds": {"96": 0.5}},
    "losses": {"criteria.a.mean": torch.arange(3, dtype=torch.float64)},
    "ema": {"backbone.weight": torch.ones(2)},
    "target_norm": {"target_norm.a.summary.count": torch.tensor(4.0)},
}


def same(found: dict, expected: dict) -> None:
    assert found.keys() == expected.keys()
    for hook, state in expected.items():
        assert found[hook].keys() == state.keys(), hook
        for name, value in state.items():
            equal = torch.equal(found[hook][name], value) if isinstance(value, torch.Tensor) else None
            assert equal if equal is not None else found[hook][name] == value, f"{hook} {name}"


def test_the_files_of_an_earlier_version_are_read(tmp_path):
    """As version 0 wrote them before hooks had a common interface."""
    state = {"global_step": 5, "quarantined": ["a"], "recent_losses": [1.0, 2.0], "rollbacks": 1, "schema": 1}
    (tmp_path / STATE).write_text(json.dumps(state | {"teacher_cost": {"a": {"images": 3}}}))
    save_file(BUILT_IN["losses"], tmp_path / LOSSES)
    save_file(BUILT_IN["ema"], tmp_path / EMA_FILE)
    moments = {"backbone.weight.exp_avg": torch.zeros(2), **BUILT_IN["target_norm"]}
    read = RunState(**json.loads((tmp_path / STATE).read_text()))
    same(read_states(tmp_path, read, moments, ["ema"]), BUILT_IN | {"dealing": {"micro_batch_seconds": {}}})
    assert "ema" not in read_states(tmp_path, read, moments, [])


def test_built_in_states_keep_their_files(tmp_path):
    state = RunState(global_step=5)
    update_run_state(state, BUILT_IN)
    assert (state.quarantined, state.recent_losses, state.rollbacks) == (["a"], [1.0, 2.0], 1)
    assert files_of(BUILT_IN).keys() == {LOSSES, EMA_FILE}
    assert files_of({}) == {}
    update_run_state(state, {})
    assert state.quarantined == ["a"]


@pytest.mark.parametrize("tensors", [True, False])
def test_a_users_state_comes_back_with_its_types(tmp_path, tensors):
    torch.manual_seed(0)
    student = Student(StudentArchitecture("test_resnet"))
    own = {"my_package.hooks:First": {"steps": 7, "names": ["x", None], "nested": {"a": 1.5}}}
    if tensors:
        own["my_package.hooks:First"]["sum"] = torch.arange(4).view(2, 2)
        own["my_package.hooks:Second"] = {"sum": torch.ones(3, dtype=torch.bfloat16)}
    state = RunState(global_step=5)
    folder = commit(tmp_path, snapshot("model_epoch_001", student, student.state_dict(), {}, state, files_of(own)))
    assert dataclasses.asdict(examine(folder)) == dataclasses.asdict(state) and (folder / OPTIMIZER).is_file()
    found = read_states(folder, state, {}, [])
    same({hook: found[hook] for hook in own}, own)
    (folder / HOOKS).write_bytes((folder / HOOKS).read_bytes()[:-1])
    assert not isinstance(examine(folder), RunState), "a torn file of hooks is a torn checkpoint"
