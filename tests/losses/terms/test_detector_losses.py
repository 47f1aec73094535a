"""PHI-S of what is compared as it is, and where a detecting teacher is listened to."""

from __future__ import annotations

import torch

from radioplat.losses.target_transforms.phi_s import phi_s
from radioplat.losses.terms.feature import mse
from radioplat.losses.terms.phi_error import PhiError
from radioplat.losses.weighting.iou_mask import object_mask


def test_phi_error_is_the_squared_error_of_phi_s_targets():
    generator = torch.Generator().manual_seed(0)
    mix = torch.randn(8, 8, generator=generator)
    teacher = (torch.randn(4, 5, 5, 8, generator=generator) @ mix + 3).double()
    student = torch.randn(4, 5, 5, 8, generator=generator).double()
    loss = PhiError(8).train()
    first, _ = loss(student.float(), teacher.float(), torch.ones(4))
    torch.testing.assert_close(first, mse(student, teacher).float().mean((1, 2)))  # nothing is known yet
    loss.update(loss.sums())
    rows = teacher.flatten(0, 2)
    transform = phi_s(torch.cov(rows.T, correction=0))
    w, mu = transform.forward, rows.mean(0)
    closed = mse((student - mu) @ w.T, (teacher - mu) @ w.T)
    torch.testing.assert_close(loss.compare(student.float(), teacher.float(), torch.ones(4), None), closed.float())


def test_phi_counts_what_is_seen_alone():
    loss, teacher = PhiError(2).train(), torch.randn(2, 3, 3, 2, generator=torch.Generator().manual_seed(1))
    valid = torch.zeros(2, 3, 3)
    valid[0, 0] = 1
    valid[1] = 1
    loss(teacher, teacher, torch.tensor([1.0, 0.0]), valid)
    assert loss.sums()["rows"] == 3
    torch.testing.assert_close(loss.sums()["total"], teacher[0, 0].sum(0).double())


def test_the_mask_by_hand():
    """Two queries: one sure and right, one sure of nothing that is there; each looks like one position."""
    logits = torch.tensor([[[4.0, -9.0], [4.0, -9.0]]]).repeat(2, 1, 1)
    boxes = torch.tensor([[[0.5, 0.5, 0.4, 0.4], [0.1, 0.1, 0.1, 0.1]]]).repeat(2, 1, 1)
    queries = torch.eye(2).expand(2, 2, 2)
    memory = torch.tensor([[[1.0, 0.0], [0.0, 2.0], [-1.0, 0.0]]]).expand(2, 1, 3, 2)
    truth = [torch.tensor([[0.5, 0.5, 0.4, 0.2]]), torch.zeros(0, 4)]
    mask = object_mask(logits, boxes, queries, memory, truth)
    score = torch.tensor(4.0).sigmoid()
    torch.testing.assert_close(mask[0, 0], torch.tensor([0.5 * score, 0.0, 0.0]))  # IoU 0.5; like, unlike, opposite
    assert not mask[1].any()  # nothing is there: nothing counts
