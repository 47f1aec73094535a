"""Comparison of the labels of held-out images with the classes of a classifier."""

from __future__ import annotations

from collections import Counter

import pyarrow.compute as pc

from radioplat.data.index.shard_index import ShardIndex
from radioplat.errors import Problem

LABELS = "A sidecar's `id` or `label`, a .cls member, or folders as classes."  # the ways to label images, for hints
_WHERE = "dataset.val_dataset"


def held_out_labels(index: ShardIndex, num_classes: int) -> tuple[list[Problem], list[str]]:
    """Compare the labels of a held-out split with a classifier.

    Args:
        index: its class names are numbered as those of the training images; other names have no label.
        num_classes: of the classifier.

    Returns:
        Problems: no label can be compared, or labels exceed the classes; and notes about labels that are ignored.
    """
    labelled, highest, others = 0, -1, Counter[str]()
    for _, table in index.rows.blocks(["label", "label_name"]):
        labels = table["label"].to_numpy()
        labelled, highest = labelled + int((labels >= 0).sum()), max(highest, int(labels.max(initial=-1)))
        unknown = pc.filter(table["label_name"], pc.less(table["label"], 0))
        others.update(
            {str(each["values"]): each["counts"] for each in pc.value_counts(unknown.drop_null()).to_pylist()}
        )
    problems, notes, counts = list[Problem](), list[str](), _few(others)
    if highest >= num_classes:
        message = f"the held-out images have a class {highest}, and dataset.num_classes is {num_classes}"
        problems.append(Problem(message, _WHERE, "Classes count from 0, in both splits alike."))
    if others and not labelled:
        message = f"no held-out image is of a class that the training images name; there are {counts}"
        problems.append(Problem(message, _WHERE, "Take the names, or the numbers, of the train split."))
    elif others:
        count = sum(others.values())
        notes.append(f"{_WHERE}: {count} images of classes that are not learnt will not be judged: {counts}")
    elif not labelled:
        notes.append(f"{_WHERE}: no image has a label, and the student's classifier will not be judged")
    return problems, notes


def highest_label(index: ShardIndex) -> int:
    """Return the highest label of a split; -1 if no row has a label."""
    starts = range(0, len(index.label), 2**20)
    return max((int(index.label[i : i + 2**20].max(initial=-1)) for i in starts), default=-1)


def _few(counts: Counter[str], most: int = 6) -> str:
    shown = [f"{count} {name!r}" for name, count in sorted(counts.items())[:most]]
    return ", ".join(shown) + (f" and {len(counts) - most} classes more" if len(counts) > most else "")
