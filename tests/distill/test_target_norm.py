"""Standardized targets: what the losses see, what the heads give, whatever the cut of the batches."""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from radioplat.data.batch import Batch, View
from radioplat.distill.target_norm import fit_target_norm
from radioplat.models.features import Features
from radioplat.models.heads import HeadArchitecture
from radioplat.models.student import Student, StudentArchitecture
from radioplat.spec.load import load_spec
from radioplat.spec.resolve import resolve_teachers
from radioplat.teachers.transport import pack

TEACHERS = resolve_teachers(
    load_spec({
        "model": {"backbone": {"type": "test_vit"}},
        "distill": {"teacher": [{
            "name": "t", "model": {"backbone": {"type": "test_vit"}}, "mode": "combo", "loss_type": "MSE",
            "pretrained_teacher_model_path": "/nowhere",
        }]},
    })
)  # fmt: skip


def student() -> Student:
    torch.manual_seed(0)
    kwargs = {"embed_dim": 24, "depth": 1, "num_heads": 2}
    heads = (HeadArchitecture("t", 5, 7),)
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
    assert torch.equal(after.spatial, before.spatial)


def test_a_teacher_is_measured_on_what_it_saw():
    generator = torch.Generator().manual_seed(4)
    summary = torch.randn(12, 5, generator=generator).to(torch.bfloat16)
    spatial = torch.randn(12, 2, 2, 7, generator=generator).to(torch.bfloat16)
    summary[6:] += 9
    every, first = student(), student()
    given = list(fed(summary, spatial, np.ones(12, np.float32), 3))
    partitioned = [(batch, answers if batch.grain < 2 else {}) for batch, answers in given]
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
