"""What each metric needs, looked for before anything is encoded: files, labels, sizes that the student can take."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from radioplat.data.index.shard_index import ShardIndex
from radioplat.errors import Problem, RadioplatError
from radioplat.evaluation.masks.sources import find_samples, left_out
from radioplat.evaluation.metrics.zero_shot import text_width
from radioplat.models.probe import probe
from radioplat.models.student.student import Student, StudentArchitecture, classes_differ
from radioplat.spec.checks.tasks.evaluate import evaluation_problems
from radioplat.spec.schema.root import Spec

_LABELS = "A sidecar's `id` or `label`, a .cls member, or folders as classes."


def missing(
    spec: Spec, architecture: StudentArchitecture | None, train: ShardIndex | None, val: ShardIndex | None
) -> list[Problem]:
    """A problem for each metric that was asked for and cannot be had, naming the field to give.

    Args:
        architecture: of the student, None where it is not known.
        train, val: the indexed splits, None for one that cannot be read.
    """
    if problems := list(evaluation_problems(spec)):
        return problems
    return [
        *_processes(spec),
        *_resolutions(spec, architecture),
        *_labels(spec, train, val),
        *_classes(architecture, train),
        *_masks(spec),
        *_zero_shot(spec, architecture, val),
    ]


def not_asked(spec: Spec) -> list[str]:
    """A line for each metric that the spec leaves out: its name and the field that brings it."""
    config = spec.evaluate
    several = bool(config.resolutions or config.models)  # of use beside one checkpoint alone
    asked = {
        "fidelity at several resolutions, and whether they agree": (several, "resolutions"),
        "linear CKA": (config.cka_rows > 0, "cka_rows"),
        "linear probe": (config.linear_probe.enable, "linear_probe.enable"),
        "segmentation": (config.segmentation.wanted, "segmentation.images_dir, masks_dir and num_classes"),
        "change": (config.change.wanted, "change.before_dir, after_dir and masks_dir"),
        "correspondence": (config.correspondence.enable, "correspondence.enable"),
        "zero-shot classification": (bool(config.zero_shot.text_tower), "zero_shot.text_tower and teacher"),
    }
    return [f"{name}: not asked for; give evaluate.{field}" for name, (given, field) in asked.items() if not given]


def _processes(spec: Spec) -> Iterator[Problem]:
    asked, cards = spec.evaluate.num_gpus, torch.cuda.device_count()
    if cards and asked > cards:
        yield Problem(f"{asked} GPUs, and this machine has {cards}", "evaluate.num_gpus", f"Take {cards}.")


def _resolutions(spec: Spec, architecture: StudentArchitecture | None) -> Iterator[Problem]:
    sizes = {f"evaluate.resolutions[{i}]": size for i, size in enumerate(spec.evaluate.resolutions)}
    if spec.dataset.val_img_size:
        sizes = {"dataset.val_img_size": spec.dataset.val_img_size, **sizes}
    if architecture is None or not sizes:
        return
    yield from size_problems(architecture, sizes)


def size_problems(architecture: StudentArchitecture, sizes: dict[str, int]) -> Iterator[Problem]:
    """Sizes in pixels, by the fields that ask for them, that a student of ``architecture`` cannot take."""
    try:
        with torch.device("meta"):
            student = Student(architecture)
    except RadioplatError:
        return  # named where the student is looked at
    backbone = student.backbone
    for where, size in sizes.items():
        if backbone.needs_multiple and size % student.stride:
            hint = f"Take {max(1, round(size / student.stride)) * student.stride}."
            yield Problem(f"{size} is not a multiple of the student's patch {student.stride}", where, hint)
            continue
        try:
            probe(backbone, size, frozenset({"summary", "spatial"}), where)
        except RadioplatError as error:
            yield from error.problems


def _labels(spec: Spec, train: ShardIndex | None, val: ShardIndex | None) -> Iterator[Problem]:
    if not spec.evaluate.linear_probe.enable:
        return
    for index, name in ((train, "train"), (val, "val")):
        if index is not None and highest_label(index) < 0:
            where = f"dataset.{name}_dataset"
            hint = f"{_LABELS} Or evaluate.linear_probe.enable: false."
            yield Problem("a linear probe needs labelled images, and none has a label", where, hint)


def _classes(architecture: StudentArchitecture | None, train: ShardIndex | None) -> Iterator[Problem]:
    """A classifier of other classes than the images are labelled with."""
    if architecture is None or train is None or not architecture.num_classes:
        return
    if why := classes_differ(architecture.class_names, train.classes):
        message = f"the classes of the student's classifier are not those of the images: {why}"
        hint = "Labels are numbered by the sorted names of the train split: give the one it was trained on."
        yield Problem(message, "dataset.train_dataset", hint)


def _masks(spec: Spec) -> Iterator[Problem]:
    for name, config in (("segmentation", spec.evaluate.segmentation), ("change", spec.evaluate.change)):
        try:
            if config.wanted:
                find_samples(config, f"evaluate.{name}")
        except RadioplatError as error:
            yield from error.problems


def masks_found(spec: Spec) -> list[str]:
    """A line for each decoder that is asked for and can be had: on how many images, and what is left out of them."""
    lines = []
    for name, config in (("segmentation", spec.evaluate.segmentation), ("change", spec.evaluate.change)):
        if not config.wanted:
            continue
        try:
            found = find_samples(config, f"evaluate.{name}")
        except RadioplatError:
            continue  # named by `missing`
        told = f"; left out {left_out(found.faults)}" if found.faults.counts else ""
        lines.append(f"{name}: {len(found.training)} training and {len(found.held_out)} held-out masks{told}")
    return lines


def _zero_shot(spec: Spec, architecture: StudentArchitecture | None, val: ShardIndex | None) -> Iterator[Problem]:
    config = spec.evaluate.zero_shot
    if not config.text_tower:
        return
    try:
        width = text_width(config.text_tower)
    except RadioplatError as error:
        yield from error.problems
        return
    heads = {config.teacher: width} if architecture is None else {h.name: h.summary_dim for h in architecture.heads}
    own = heads.get(config.teacher or "")
    if own is None:
        yield Problem(f"the student has no summary head for {config.teacher!r}", "evaluate.zero_shot.teacher")
    elif own != width:
        yield Problem(
            f"texts are embedded in {width} dimensions, and the summary of {config.teacher!r} has {own}",
            "evaluate.zero_shot.text_tower",
            "Give the text tower that was trained with this teacher; the teacher's summary must be its projection.",
        )
    if val is None:
        return
    highest, names = highest_label(val), config.class_names or val.classes
    if highest < 0:
        yield Problem("zero-shot classification needs labelled images", "dataset.val_dataset", _LABELS)
    elif highest >= len(names):
        yield Problem(
            f"labels go up to {highest}, and there are {len(names)} names",
            "evaluate.zero_shot.class_names",
            "Give one for each label, in their order.",
        )


def highest_label(index: ShardIndex) -> int:
    """-1 where no row has a label."""
    highest = -1
    for start in range(0, len(index.label), 2**20):
        highest = max(highest, int(index.label[start : start + 2**20].max(initial=-1)))
    return highest
