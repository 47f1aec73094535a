"""Checks of image labels against the student's classifier and the classes of teachers."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from radioplat.common.listing import first_few
from radioplat.data.loading.run_data import RunData
from radioplat.errors import Problem
from radioplat.models.student.architecture import classes_differ
from radioplat.spec.resolved.labels import label_weight
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.spec.schema.distill import LabelForm
from radioplat.spec.schema.root import Spec
from radioplat.teachers.base.info import TeacherInfo

_LABELS = "A sidecar's `id` or `label`, a .cls member, or folders as classes."


def label_problems(
    spec: Spec,
    teachers: Sequence[ResolvedTeacher],
    infos: Mapping[str, TeacherInfo],
    data: RunData,
    num_classes: int = 0,
) -> Iterator[Problem]:
    """Yield missing labels, labels beyond the classifier, and classes of teachers that differ.

    Args:
        num_classes: of the student's own classifier, 0 for none.
    """
    weight = label_weight(spec.distill, teachers) if teachers else float(num_classes > 0)
    scored = [teacher for teacher in teachers if "logits" in teacher.wanted]
    if not num_classes:
        if weight and teachers:
            yield from _scores_and_labels(scored, infos, highest_label(data))
        return
    names, highest = data.index.classes, highest_label(data)
    if weight and names and (why := _mixed_labels(data)):
        hint = "Give all labels as names, or all as numbers; a sidecar may have both, `label` and `label_name`."
        yield Problem(why, "dataset.train_dataset", hint)
    if weight and highest < 0:
        field = "distill.label_form" if spec.distill.label_form is LabelForm.tao else "distill.alpha"
        if teachers:
            yield Problem("no image has a label to mix in", field, f"Leave it alone, or give labels. {_LABELS}")
        else:
            yield Problem("no image has a label", "dataset.train_dataset", _LABELS)
    if highest >= num_classes:
        listed = f": {first_few(names, 6)}" if names else ""
        message = f"{num_classes} classes, and the images have {highest + 1}{listed}"
        yield Problem(message, "dataset.num_classes", f"Take {highest + 1}.")
    for teacher in scored:
        info, where = infos[teacher.name], _weights_or_backbone(teacher)
        if info.logits_dim != num_classes:
            message = f"{teacher.name} has {info.logits_dim} classes, and dataset.num_classes is {num_classes}"
            hint = "Fine-tune it on these images (`radioplat train`), or take mode summary or spatial."
            if not info.class_names:
                override = f"{teacher.where}.model.backbone.kwargs={{num_classes: {num_classes}}}"
                hint += f" Where its weights have {num_classes}, set {override}."
            yield Problem(message, where, hint)
        elif why := classes_differ(info.class_names, names):
            message = f"the classes of {teacher.name} are not those of the images: {why}"
            yield Problem(message, where, "Fine-tune it on folders of the same names, or take mode summary or spatial.")


def class_names(
    data: RunData,
    num_classes: int,
    teachers: Sequence[ResolvedTeacher] = (),
    infos: Mapping[str, TeacherInfo] | None = None,
) -> tuple[str, ...]:
    """Return the names of a classifier's classes; empty if labels are numbers, or do not name all classes.

    If no image has a label, they are those of the first teacher whose class scores are distilled.
    """
    names: Sequence[str] = data.index.classes
    if not names and infos and highest_label(data) < 0:
        names = next((infos[t.name].class_names for t in teachers if "logits" in t.wanted), ())
    return tuple(names) if len(names) == num_classes else ()


def highest_label(data: RunData) -> int:
    """Return the highest label of all images, -1 if there is none."""
    blocks = (table["label"].to_numpy() for _, table in data.index.rows.blocks(["label"]))
    return max((int(np.max(block, initial=-1)) for block in blocks), default=-1)


def _mixed_labels(data: RunData) -> str | None:
    """Explain why numeric labels cannot be matched with label names; None if they can."""
    names = data.index.classes
    known = pa.array(names, pa.large_string())
    for _, table in data.index.rows.blocks(["given_label", "label_name"]):
        given, place = table["given_label"], pc.index_in(table["label_name"], known, skip_nulls=True)
        differs = pc.not_equal(pc.fill_null(pc.cast(place, pa.int64()), -1), given)
        unmatched = pc.and_(pc.greater_equal(given, 0), differs)
        if len(numbers := pc.filter(given, unmatched)):
            first = numbers[0].as_py()
            is_ = f"class {first} is {names[first]!r}" if first < len(names) else f"there is a class {first}"
            return f"some labels are numbers and others names ({first_few(names, 6)}), and it is unknown whether {is_}"
    return None


def _scores_and_labels(
    scored: Sequence[ResolvedTeacher], infos: Mapping[str, TeacherInfo], highest: int
) -> Iterator[Problem]:
    """Yield problems of labels for a student whose only classes are those of its heads for class scores."""
    if highest < 0:
        yield Problem("no image has a label to mix in", "distill.alpha", "Leave it at 0.")
    for teacher in scored:
        if 0 <= infos[teacher.name].logits_dim <= highest:
            yield Problem(
                f"labels go up to {highest}, and {teacher.name} has {infos[teacher.name].logits_dim} classes",
                "distill.alpha",
                "Labels must be numbered as the classes of the teacher's logits are.",
            )


def _weights_or_backbone(teacher: ResolvedTeacher) -> str:
    given = teacher.weights and not teacher.ensemble
    return f"{teacher.where}.pretrained_teacher_model_path" if given else f"{teacher.where}.model.backbone"
