"""Fitted heads: they say what the teacher says where that is linear in the student, at any world size."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from forked import run_ranks

from radioplat.data.batch import Batch, View
from radioplat.models.features import Features
from radioplat.models.heads import HeadArchitecture, shuffle_up
from radioplat.models.student.fold_target_norm import last_linear
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.training.targets.head_fit import HeadFit

KINDS = ("summary", "spatial")
WIDTH = 48  # the attn head has 16 attention heads
IMAGES = 240


def student(seed: int = 0, **head) -> Student:
    torch.manual_seed(seed)
    kwargs = {"embed_dim": WIDTH, "depth": 1, "num_heads": 2}
    heads = (HeadArchitecture("t", 5, 7, **head),)
    return Student(StudentArchitecture("radio_vit_tiny_patch16", kwargs, img_size=32, heads=heads))


def batches(size: int = 8, count: int = IMAGES):
    """Micro-batches of random images, seen alike by student and teacher."""
    rng = np.random.default_rng(4)
    pixels = rng.integers(0, 256, (count, 3, 32, 32), np.uint8)
    for begin in range(0, count, size):
        view = View(pixels[begin : begin + size], np.broadcast_to(np.eye(3, dtype=np.float32), (size, 3, 3)))
        place = np.arange(begin, begin + size)
        yield Batch(begin // size, {"32": view}, place, place, np.ones(size, np.float32), np.full(size, -1))


def answers(model: Student, batch: Batch) -> dict[str, Features]:
    """The teacher: ``model`` with heads of its own, in raw features."""
    model.eval()
    with torch.no_grad():
        return {"t": model.heads["t"](model(torch.tensor(batch.views["32"].pixels)))}


def teacher_of(model: Student, seed: int = 9) -> Student:
    """A student whose backbone and heads are those of ``model`` but for the heads' last layers."""
    teacher = student(0, **{k: v for k, v in vars(model.heads["t"].architecture).items() if k in HEAD_FIELDS})
    teacher.load_state_dict(model.state_dict())
    torch.manual_seed(seed)
    for kind in KINDS:
        torch.nn.init.normal_(last_linear(getattr(teacher.heads["t"], kind)).weight)
        torch.nn.init.normal_(last_linear(getattr(teacher.heads["t"], kind)).bias)
    return teacher


HEAD_FIELDS = ("hidden", "num_inner", "spatial_version", "upsample")
HEADS = [{}, {"hidden": 20}, {"hidden": 20, "num_inner": 1}, {"hidden": 20, "spatial_version": "attn"}, {"upsample": 2}]


def fit(model: Student, teacher: Student, given=None) -> list:
    heads = HeadFit(model, [("t", kind) for kind in KINDS], "32", {"t": "32"}, torch.device("cpu"))
    model.train()
    for batch in given or batches():
        heads.add(batch, answers(teacher, batch))
    assert model.training
    return heads.finish()


@pytest.mark.parametrize("head", HEADS, ids=str)
def test_what_is_linear_in_the_student_is_said_exactly(head):
    model = student(**head)
    teacher = teacher_of(model)
    results = fit(model, teacher)
    assert [(r.teacher, r.kind) for r in results] == [("t", kind) for kind in KINDS]
    assert model.raw_heads == {("t", kind) for kind in KINDS}
    batch = next(batches(64))
    theirs, ours = answers(teacher, batch)["t"], answers(model, batch)["t"]
    for result in results:
        assert result.r2 == pytest.approx(1, abs=1e-3), result
        expected = getattr(theirs, result.kind)
        error = (getattr(ours, result.kind) - expected).square().mean() / expected.var()
        assert error < 1e-3, (result.kind, float(error))
        assert "explains 100%" in result.message


def test_upsampled_maps_lie_where_pixel_shuffle_puts_them():
    model = student(upsample=2)
    teacher = teacher_of(model)
    fit(model, teacher)
    batch = next(batches(4))
    with torch.no_grad():
        model.eval()
        spatial = model(torch.tensor(batch.views["32"].pixels)).spatial
        mine = shuffle_up(last_linear(model.heads["t"].spatial)(spatial), 2)
    theirs = answers(teacher, batch)["t"].spatial
    assert mine.shape == theirs.shape == (4, 4, 4, 7)
    assert (mine - theirs).abs().max() < 0.05 * theirs.std()


def ranks(folder: Path) -> None:
    """One of the workers: its share of the micro-batches, in the order of the run."""
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    model = student(hidden=20)
    fit(model, teacher_of(model), [batch for i, batch in enumerate(batches()) if i % world == rank])
    torch.save(model.heads.state_dict(), folder / f"{world}_{rank}.pt")
    dist.destroy_process_group()


def test_two_workers_fit_what_one_fits(tmp_path):
    run_ranks(ranks, tmp_path, world=2)
    model = student(hidden=20)
    fit(model, teacher_of(model))
    for rank in range(2):
        found = torch.load(tmp_path / f"2_{rank}.pt", weights_only=True)
        for name, value in model.heads.state_dict().items():
            torch.testing.assert_close(found[name], value, rtol=1e-6, atol=1e-6)


def test_what_cannot_be_fitted_is_named_and_stays_random():
    model = student()
    before = {k: v.clone() for k, v in model.heads.state_dict().items()}
    heads = HeadFit(model, [("t", kind) for kind in KINDS], "32", {"t": "32"}, torch.device("cpu"))
    for batch in batches():
        said = Features(torch.ones(8, 5), torch.full((8, 2, 2, 7), float("nan")))
        heads.add(batch, {"t": said})
    summary, spatial = heads.finish()
    assert summary.r2 is None and spatial.r2 is None
    assert summary.message == (
        "the summary head of t starts with random weights: the teacher's features are the same for all images"
    )
    assert "are not finite" in spatial.message
    assert all(torch.equal(before[k], v) for k, v in model.heads.state_dict().items())
    assert not model.raw_heads


def test_few_images_are_named():
    model = student()
    results = fit(model, teacher_of(model), list(batches(8, 40)))
    assert "was fitted to 40 images; 192 would be better" in results[0].message
    (none, _) = fit(student(), teacher_of(student()), list(batches(4, 4)))
    assert none.r2 is None and "too few images were seen" in none.message


def test_samples_without_weight_and_hidden_positions_do_not_count():
    model, broken = student(), student()
    teacher = teacher_of(model)
    fit(model, teacher)
    heads = HeadFit(broken, [("t", kind) for kind in KINDS], "32", {"t": "32"}, torch.device("cpu"))
    for batch in batches():
        said = answers(teacher, batch)["t"]
        heads.add(batch, {"t": said})
        weight = np.zeros(8, np.float32)
        unreadable = Batch(batch.micro_batch, batch.views, batch.sample_id, batch.position, weight, batch.label)
        heads.add(unreadable, {"t": Features(said.summary * float("nan"), said.spatial * float("inf"))})
    heads.finish()
    for name, value in model.heads.state_dict().items():
        torch.testing.assert_close(broken.heads.state_dict()[name], value, rtol=1e-6, atol=1e-6)
