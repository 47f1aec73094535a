"""Statistics of the teachers' features, taken before the first step and frozen into the heads.

``standardize``: y' = (y - mean) / sqrt(mean over dimensions of the variance). One scale for all dimensions keeps their
proportions, as PHI-S does (Ranzinger et al. 2024), without its rotation.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch

from radioplat.data.batch import Batch
from radioplat.distill import group
from radioplat.distill.overlap import shown_positions
from radioplat.models.student import Student
from radioplat.spec.resolve import ResolvedTeacher
from radioplat.teachers.client import Pending
from radioplat.teachers.transport import unpack

_SPREAD_FLOOR = 1e-6


def fit_target_norm(
    student: Student,
    teachers: list[ResolvedTeacher],
    fed: Iterable[tuple[Batch, dict[str, Pending]]],
    device: torch.device,
) -> None:
    """Measure mean and spread of every teacher's summary and map over the ``fed`` batches of all ranks.

    Sums are float64 and added over the ranks, so any cut of the same batches gives the same figures. Values are
    rounded to bf16, which all precisions of the student hold exactly. A teacher is measured on what it saw, a map only
    where every pixel shows the image.
    """
    sums = {(t.name, kind): None for t in teachers for kind in sorted(t.wanted & {"summary", "spatial"})}
    views = {t.name: t.view for t in teachers}
    for batch, answers in fed:
        alive = torch.tensor(batch.weight) > 0
        for name, kind in sums:
            if name not in answers:
                continue  # padding, or a micro-batch that other teachers see
            features = unpack(answers[name]())
            found, counts = features.summary, alive
            if kind == "spatial":
                found = features.spatial
                counts = alive.view(-1, 1, 1) & shown_positions(batch.views.get(views[name]), found.shape[:3])
            rows = found[counts].double()
            moments = torch.stack([rows.sum(0), rows.square().sum(0), torch.full((rows.shape[1],), float(len(rows)))])
            sums[name, kind] = moments if sums[name, kind] is None else sums[name, kind] + moments
    for (name, kind), moments in sums.items():
        head = student.heads[name]
        mean = getattr(head, f"{kind}_mean")
        if moments is None:  # a rank that saw only padding
            moments = torch.zeros(3, len(mean), dtype=torch.float64)
        total = group.total(moments.to(device)).cpu()
        count = total[2].clamp(min=1)
        centre = total[0] / count
        spread = (total[1] / count - centre.square()).clamp(min=0).mean().sqrt().clamp(min=_SPREAD_FLOOR)
        mean.copy_(centre.to(torch.bfloat16))
        getattr(head, f"{kind}_scale").copy_(spread.to(torch.bfloat16))
