"""Standardized targets: what the losses see, what the heads give, whatever the cut of the batches."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.distributed as dist
from forked import run_ranks
from hypothesis import given, settings
from hypothesis import strategies as st
from target_norm import fit_target_norm

from radioplat.data.batch import Batch, View
from radioplat.errors import TrainingError
from radioplat.losses.target_transforms.transform import FORMS
from radioplat.models.features import Features
from radioplat.models.heads import HeadArchitecture
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.teacher import resolve_teachers
from radioplat.spec.schema.distill import TargetNormType
from radioplat.teachers.serving.transport import pack


def teachers(kind: str = "standardize", **more):
    """One teacher whose summary and map are transformed."""
    return resolve_teachers(
        load_spec({
            "model": {"backbone": {"type": "test_vit"}},
            "distill": {"target_norm": {"type": kind}, "teacher": [{
                "name": "t", "model": {"backbone": {"type": "test_vit"}}, "mode": "combo", "loss_type": "MSE",
                "pretrained_teacher_model_path": "/nowhere", **more,
            }]},
        })
    )  # fmt: skip


TEACHERS = teachers()


def student(form: str = "scalar") -> Student:
    torch.manual_seed(0)
    kwargs = {"embed_dim": 24, "depth": 1, "num_heads": 2}
    heads = (HeadArchitecture("t", 5, 7, summary_norm=form, spatial_norm=form),)
    return Student(StudentArchitecture("radio_vit_tiny_patch16", kwargs, img_size=32, heads=heads))


def fed(summary: torch.Tensor, spatial: torch.Tensor, weight: np.ndarray, size: int):
    """Micro-batches of ``size`` samples with these answers, and one of padding."""
    nothing = np.zeros(size, np.int64)
    for i in range(0, len(summary), size):
        answer = pack(Features(summary[i : i + size], spatial[i : i + size]), 0.0)
        yield Batch(i // size, {}, nothing, nothing, weight[i : i + size], nothing), {"t": lambda answer=answer: answer}
    yield Batch(-1, {}, nothing, nothing, np.zeros(size, np.float32), nothing), {}


def test_the_figures_are_those_of_all_living_samples_however_they_are_cut():
    generator = torch.Generator().manual_seed(3)
    summary = (torch.randn(12, 5, generator=generator) * 2 + 3).to(torch.bfloat16)
    spatial = (torch.randn(12, 2, 2, 7, generator=generator) * 0.5 - 1).to(torch.bfloat16)
    weight = np.ones(12, np.float32)
    weight[4] = 0
    alive = torch.tensor(weight) > 0
    heads = []
    for size in (3, 6):
        model = student()
        fit_target_norm(model, TEACHERS, fed(summary, spatial, weight, size), torch.device("cpu"))
        heads.append(model.heads["t"])
    for kind, values in (("summary", summary[alive]), ("spatial", spatial[alive].flatten(0, 2))):
        rows = values.double()
        spread = rows.var(0, unbiased=False).mean().sqrt()
        for head in heads:
            mean, scale = getattr(head, f"{kind}_mean"), getattr(head, f"{kind}_scale")
            assert torch.allclose(mean.double(), rows.mean(0), rtol=1e-2, atol=1e-2)
            assert torch.allclose(scale.double(), spread, rtol=1e-2)
            assert torch.equal(mean, mean.to(torch.bfloat16).float())  # survives a bf16 engine as it is
        assert torch.equal(getattr(heads[0], f"{kind}_mean"), getattr(heads[1], f"{kind}_mean"))
        seen = heads[0].standardize(kind, values)
        assert seen.mean().abs() < 0.05 and abs(float(seen.var(0, unbiased=False).mean().sqrt()) - 1) < 0.02


def test_a_head_speaks_raw_features_and_standardize_takes_that_back():
    model = student().eval()
    head = model.heads["t"]
    features = model(torch.rand(2, 3, 32, 32))
    before = head(features)
    head.summary_mean.fill_(2.0)
    head.summary_scale.fill_(3.0)
    after = head(features)
    assert torch.allclose(after.summary, before.summary * 3 + 2, atol=1e-5)
    assert torch.allclose(head.standardize("summary", after.summary), before.summary, atol=1e-5)
    assert torch.equal(head(features, raw=False).summary, before.summary)
    assert torch.equal(after.spatial, before.spatial)


def test_a_teacher_is_measured_on_what_it_saw():
    generator = torch.Generator().manual_seed(4)
    summary = torch.randn(12, 5, generator=generator).to(torch.bfloat16)
    spatial = torch.randn(12, 2, 2, 7, generator=generator).to(torch.bfloat16)
    summary[6:] += 9
    every, first = student(), student()
    given = list(fed(summary, spatial, np.ones(12, np.float32), 3))
    partitioned = [(batch, answers if batch.micro_batch < 2 else {}) for batch, answers in given]
    fit_target_norm(every, TEACHERS, partitioned, torch.device("cpu"))
    fit_target_norm(first, TEACHERS, given[:2], torch.device("cpu"))
    for kind in ("summary", "spatial"):
        for name in (f"{kind}_mean", f"{kind}_scale"):
            assert torch.equal(getattr(every.heads["t"], name), getattr(first.heads["t"], name)), name
    assert every.heads["t"].summary_mean.abs().max() < 2


def test_what_a_mask_hides_is_not_measured():
    summary, spatial = torch.randn(2, 5), torch.randn(2, 2, 2, 7).to(torch.bfloat16)
    spatial[0, 0, 1] = float("nan")
    valid = np.ones((2, 8, 8), bool)
    valid[0, 3, 4] = False
    view = View(np.zeros((2, 3, 8, 8), np.uint8), np.tile(np.eye(3, dtype=np.float32), (2, 1, 1)), valid)
    [(batch, answers), _] = list(fed(summary, spatial, np.ones(2, np.float32), 2))
    model = student()
    seen = [(dataclasses.replace(batch, views={TEACHERS[0].view: view}), answers)]
    fit_target_norm(model, TEACHERS, seen, torch.device("cpu"))
    rows = spatial.flatten(0, 2)[torch.arange(8) != 1].double()
    assert torch.allclose(model.heads["t"].spatial_mean.double(), rows.mean(0), rtol=1e-2, atol=1e-2)


MATRICES = ["phi_s", "zca", "pca"]


def told(count: int = 24) -> tuple[torch.Tensor, torch.Tensor]:
    """What a teacher says of ``count`` images: directions of very different spread around a large mean."""
    generator = torch.Generator().manual_seed(6)
    mix = torch.randn(7, 7, generator=generator) * torch.logspace(1, -1, 7)
    summary = torch.randn(count, 5, generator=generator) @ mix[:5, :5] + 20
    spatial = torch.randn(count, 3, 4, 7, generator=generator) @ mix - 5
    return summary.to(torch.bfloat16), spatial.to(torch.bfloat16)


def alone(kind: str, summary: torch.Tensor, spatial: torch.Tensor, size: int = 6):
    """The head of a student after a pass over these features."""
    model = student(FORMS[TargetNormType(kind)])
    weight = np.ones(len(summary), np.float32)
    fit_target_norm(model, teachers(kind), fed(summary, spatial, weight, size), torch.device("cpu"))
    return model.heads["t"]


@pytest.mark.parametrize("kind", [*MATRICES, "standardize_channels"])
def test_variances_are_one_and_the_way_back_is_exact(kind):
    summary, spatial = told(400)
    head = alone(kind, summary, spatial)
    for name, values in (("summary", summary), ("spatial", spatial)):
        rows = values.flatten(0, -2).float()
        seen = head.standardize(name, rows)
        assert ((seen.var(0, unbiased=False) - 1).abs() < 0.02).all(), name
        assert seen.mean(0).abs().max() < 1e-3
        assert (head.raw(name, seen) - rows).abs().max() / rows.std(0).max() < 1e-5
        if kind in ("zca", "pca"):
            assert torch.allclose(torch.cov(seen.T), torch.eye(rows.shape[1]), atol=0.02)


@settings(max_examples=15, deadline=None)
@given(st.sampled_from(MATRICES), st.permutations(range(24)), st.sampled_from([1, 3, 8]))
def test_permuted_data_give_the_same_transform(kind, order, size):
    summary, spatial = told()
    first, second = alone(kind, summary, spatial), alone(kind, summary[list(order)], spatial[list(order)], size)
    for name in ("summary_rotation", "spatial_rotation", "summary_mean", "spatial_inverse"):
        assert torch.allclose(getattr(first, name), getattr(second, name), rtol=1e-6, atol=1e-6), name


def work(folder: Path) -> None:
    """One of four workers: every fourth sample, taken from the end."""
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    summary, spatial = (values.flip(0)[rank::4] for values in told())
    for kind in MATRICES:
        head = alone(kind, summary, spatial, 2)
        torch.save({k: v for k, v in head.named_buffers()}, folder / f"{kind}{rank}.pt")
    dist.destroy_process_group()


def test_four_workers_find_what_one_finds(tmp_path):
    run_ranks(work, tmp_path, world=4)
    for kind in MATRICES:
        expected = dict(alone(kind, *told()).named_buffers())
        for rank in range(4):
            found = torch.load(tmp_path / f"{kind}{rank}.pt", weights_only=True)
            assert set(found) == set(expected)
            for name, value in expected.items():
                assert torch.allclose(found[name], value, rtol=1e-6, atol=1e-6), (kind, rank, name)


def test_a_map_has_a_transform_of_its_own():
    (teacher,) = teachers("standardize", spatial_norm_type="phi")
    assert teacher.norms == {"summary": TargetNormType.standardize, "spatial": TargetNormType.phi_s}
    (teacher,) = teachers("none", spatial_norm_type="zca")
    assert teacher.norms == {"spatial": TargetNormType.zca}


def test_what_is_not_finite_is_told():
    summary, spatial = told()
    spatial[3] = float("nan")
    with pytest.raises(TrainingError, match="teacher t gave a spatial that is not finite") as caught:
        alone("phi_s", summary, spatial)
    assert caught.value.agreed
    weight = np.ones(24, np.float32)
    weight[3] = 0
    model = student("matrix")
    fit_target_norm(model, teachers("phi_s"), fed(summary, spatial, weight, 6), torch.device("cpu"))
    assert torch.isfinite(model.heads["t"].spatial_rotation).all()


def test_a_teacher_that_nobody_asked_stays_as_it_is():
    model = student("matrix")
    fit_target_norm(model, teachers("phi_s"), [], torch.device("cpu"))
    assert torch.equal(model.heads["t"].spatial_rotation, torch.eye(7))
