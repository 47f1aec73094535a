"""Whether the labels of the shards can be mixed with what teachers say (``distill.alpha``)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np

from radioplat.data.run_data import RunData
from radioplat.errors import Problem
from radioplat.spec.resolve import ResolvedTeacher
from radioplat.spec.root import Spec
from radioplat.teachers.teacher import TeacherInfo


def label_problems(
    spec: Spec, teachers: Sequence[ResolvedTeacher], infos: Mapping[str, TeacherInfo], data: RunData
) -> Iterator[Problem]:
    """Images without any label, or labels that a teacher's class scores have no place for."""
    if not spec.distill.alpha or not teachers:
        return
    blocks = (table["label"].to_numpy() for _, table in data.index.rows.blocks(["label"]))
    highest = max((int(np.max(block, initial=-1)) for block in blocks), default=-1)
    if highest < 0:
        yield Problem("no image has a label to mix in", "distill.alpha", "Leave it at 0.")
    for teacher in teachers:
        classes = infos[teacher.name].logits_dim
        if "logits" in teacher.wanted and 0 <= classes <= highest:
            yield Problem(
                f"labels go up to {highest}, and {teacher.name} has {classes} classes",
                "distill.alpha",
                "Labels must be numbered as the classes of the teacher's logits are.",
            )
