"""A frozen backbone in a checkpoint of two workers: whole and unrounded, at every ZeRO stage and in bf16."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
import torch
from forked import run_ranks

from radioplat.design.run import Run
from radioplat.design.student import prepare_student
from radioplat.models.heads import HeadArchitecture
from radioplat.models.student.checkpoint import read_tensors
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.objectives.objective import Objective
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.root import Spec
from radioplat.training.checkpoints.persistence import Persistence
from radioplat.training.engine.registry import build_engine
from radioplat.training.hooks.step_hook import StepHooks
from radioplat.training.loop import process_group

# An attention of more than 100,000 weights: fewer are never cut up at stage 3.
ARCHITECTURE = StudentArchitecture(
    "radio_vit_tiny_patch16",
    {"embed_dim": 192, "depth": 1, "num_heads": 3},
    img_size=32,
    heads=(HeadArchitecture("t", spatial_dim=8, hidden=16),),
)
CASES = {
    "backbone": {"train.precision": "fp32", "train.zero_stage": 3, "model.backbone.freeze_backbone": True},
    "norm": {"train.precision": "fp32", "train.zero_stage": 3, "model.backbone.freeze_norm": True},
    "bf16": {"train.precision": "bf16", "train.zero_stage": 1, "model.backbone.freeze_backbone": True},
}


class Ones(Objective):
    """A student whose map is pulled towards 1."""

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Scalar, fp32."""
        features = self.student(images, frozenset({"summary", "spatial"}))
        return (self.student.heads["t"](features, raw=False).spatial.float() - 1).square().mean()


def spec_of(case: str) -> Spec:
    return load_spec({"dataset": {"batch_size": 2}}, [f"{k}={v}" for k, v in CASES[case].items()])


def fresh(spec: Spec) -> Student:
    torch.manual_seed(0)
    return prepare_student(Student(ARCHITECTURE), spec, "train")


def work(folder: Path) -> None:
    """One worker: a step and a checkpoint of each case."""
    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    process_group.join("gloo")
    for case in CASES:
        print(case, flush=True)
        spec, at = spec_of(case), folder / case
        run = Run(spec, "distill", at, [], {}, {}, ARCHITECTURE, (), "32", 1, 1, {"seed": "0"})
        if rank == 0:
            at.mkdir()
        torch.distributed.barrier()
        persistence = Persistence(run, rank, world)
        module = Ones(fresh(spec), "32").train()
        persistence.restore_weights(module)
        engine = build_engine(module, spec, 1)
        images = torch.randint(0, 256, (2, 3, 32, 32), generator=torch.Generator().manual_seed(rank))
        engine.backward(engine(images.to(torch.uint8)))
        engine.step()
        persistence.restore_optimizer(engine)
        persistence.state.global_step = 1
        persistence.save(StepHooks([]))


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    found = tmp_path_factory.mktemp("frozen")
    run_ranks(work, found, seconds=120)
    return found


@pytest.mark.timeout(300)
@pytest.mark.parametrize("case", CASES)
def test_what_is_frozen_is_saved_as_it_was(folder, case):
    before = fresh(spec_of(case))
    (path,) = (p for p in (folder / case).glob("model_epoch_*") if not p.is_symlink())
    after = read_tensors(path)
    assert after.keys() == before.state_dict().keys()
    moved, frozen = [], [name for name, p in before.named_parameters() if not p.requires_grad]
    for name, value in before.named_parameters():
        assert after[name].shape == value.shape, name
        if name in frozen:
            assert torch.equal(after[name], value), name
        elif not torch.equal(after[name], value):
            moved.append(name)
    assert "heads.t.spatial.fc1.weight" in moved
