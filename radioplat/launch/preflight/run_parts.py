"""Preflight steps that create the parts of a run: models, samples, classes, the detector, the length."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence

import numpy as np

from radioplat.data.detection.box_table import BoxTable
from radioplat.data.detection.split import read_split
from radioplat.data.index.build import build_index
from radioplat.data.index.scan_wait import Patience
from radioplat.data.loading.run_data import RunData
from radioplat.data.scan.sources import list_shards
from radioplat.design.automatic import Decision, decide, ema_decay, warmup_epochs
from radioplat.design.detector import detector_architecture, detector_widths
from radioplat.design.detector_teachers import teacher_file_problems
from radioplat.design.head_fit import fit_steps, heads_to_fit
from radioplat.design.labels import class_names, label_problems
from radioplat.design.models import design_models, student_architecture
from radioplat.design.run import has_held_out, steps_per_epoch
from radioplat.design.stages import total_steps
from radioplat.errors import Problem, RadioplatError
from radioplat.evaluation.models.held_out_labels import held_out_labels
from radioplat.launch.preflight.preflight import Level, Preflight
from radioplat.spec.checks.tasks.training_run import check
from radioplat.spec.checks.tasks.training_task import is_taught, training_task
from radioplat.spec.resolved.image_sizes import without_teaching
from radioplat.spec.resolved.retired import retired_field_notes
from radioplat.spec.schema.model import ModelTask

TRAIN, VAL = "dataset.train_dataset", "dataset.val_dataset"


def names_no_folder(problems: Sequence[Problem]) -> bool:
    """Return True if ``results_dir`` is invalid, so that nothing may be written there."""
    return any(problem.where == "results_dir" for problem in problems)


def contradictions(preflight: Preflight) -> Iterator[Problem]:
    """Check the spec without reading files."""
    problems = check(preflight.spec, preflight.task)
    preflight.ended = names_no_folder(problems)
    preflight.start_notes += retired_field_notes(preflight.spec)
    if preflight.spec.without_effect:
        reasons = (f"{path}: {reason}" for path, reason in preflight.spec.without_effect.items())
        preflight.start_notes.append(f"fields without effect here: {'; '.join(reasons)}")
    if not is_taught(preflight.task):
        preflight.spec = without_teaching(preflight.spec)
    yield from problems


def automatic(preflight: Preflight) -> Iterator[Problem]:
    """Decide settings of a taught student that the spec leaves unset; a run keeps the ``compat`` that it began with."""
    spec = preflight.spec
    earlier = preflight.beginning.spec
    if earlier is not None and earlier.compat is not spec.compat:
        hint = "Set it back, or choose another results_dir."
        yield Problem(f"this run began with compat: {earlier.compat.value}", "compat", hint)
        return
    if not is_taught(preflight.task) or spec.model.task is not ModelTask.features:
        return
    with contextlib.suppress(RadioplatError):  # of the student or its weights: the next steps report it
        student = student_architecture(spec, preflight.task, [], {})
        preflight.spec, decisions = decide(spec, student, earlier)
        preflight.decide(*decisions)


def models(preflight: Preflight) -> None:
    """Determine the structure of teachers and student."""
    preflight.models = design_models(preflight.spec, preflight.task)


def boxes(preflight: Preflight) -> None:
    """Read the boxes of a detector's training images."""
    if training_task(preflight.spec, preflight.task).reads_boxes:
        dataset = preflight.spec.dataset
        preflight.boxes = read_split(dataset.train_dataset, dataset.classes, TRAIN)


def samples(preflight: Preflight) -> None:
    """Index the training images, and determine their order and the steps of an epoch."""
    dataset = preflight.spec.dataset
    place, limit = preflight.index_dir / "train", dataset.max_pixels
    split, patience = dataset.train_dataset, _patience(preflight)
    index = build_index(split, TRAIN, place, max_pixels=limit, scan=preflight.scan, patience=patience)
    table = None if preflight.boxes is None else BoxTable.join(index, preflight.boxes.pictures)
    data = RunData.create(index, split, limit, table)
    data.order  # noqa: B018  raises for a source without images
    preflight.data, preflight.steps_per_epoch = data, steps_per_epoch(preflight.spec, data)
    if preflight.models is not None:
        number = preflight.models.architecture.num_classes
        preflight.class_names = class_names(data, number, preflight.models.teachers, preflight.models.infos)


def _patience(preflight: Preflight) -> Patience | None:
    """Return how long a start waits for shards; `plan` does not wait."""
    dataset = preflight.spec.dataset
    if preflight.level is not Level.start:
        return None
    return Patience(dataset.read_timeout_s, dataset.storage_timeout_s)


def average(preflight: Preflight) -> None:
    """Decide the decay of the weights' average from the length of the run; one that has begun keeps its own."""
    train = preflight.spec.train
    if not train.enable_ema or train.ema_decay is not None or preflight.data is None:
        return
    earlier = preflight.beginning.spec
    decay = earlier.train.ema_decay if earlier is not None else None
    if decay is None:
        decay = ema_decay(total_steps(preflight.spec, preflight.steps_per_epoch))
        preflight.decide(Decision("train.ema_decay", round(decay, 6), "an average over a tenth of the run"))
    preflight.spec = copy.deepcopy(preflight.spec)
    preflight.spec.train.ema_decay = decay


def warm_up(preflight: Preflight) -> None:
    """Decide the warm-up of a taught student from the length of the run; one that has begun keeps its own."""
    spec = preflight.spec
    taught = is_taught(preflight.task) and spec.model.task is ModelTask.features
    if spec.train.optim.warmup_epochs is not None or preflight.data is None or not taught:
        return
    earlier = preflight.beginning.spec
    if earlier is not None:
        epochs = earlier.train.optim.warm_up
    elif epochs := warmup_epochs(spec, total_steps(spec, preflight.steps_per_epoch) / preflight.steps_per_epoch):
        preflight.decide(Decision("train.optim.warmup_epochs", epochs, "random weights"))
    preflight.spec = copy.deepcopy(spec)
    preflight.spec.train.optim.warmup_epochs = epochs


def sample_facts(preflight: Preflight) -> None:
    """Warn of damaged members and of a field that does not fit the shards; record the mixture and objects as facts."""
    if preflight.data is None:
        return
    index, warnings = preflight.data.index, preflight.warnings
    if len(index.faults):
        reasons, counts = np.unique(index.faults["reason"].to_pylist(), return_counts=True)
        listed = ", ".join(f"{count} {reason}" for reason, count in zip(reasons, counts, strict=True))
        warnings.append(f"unusable members in the shards: {listed}")
    for i, source in enumerate(preflight.spec.dataset.train_dataset.tar_data_sources):
        shards = index.shards_of(i)
        largest = int(index.shards["rows"].to_numpy()[shards.start : shards.stop].max(initial=0))
        if largest > source.samples_per_file:
            warnings.append(
                f"{TRAIN}.tar_data_sources[{i}].samples_per_file is {source.samples_per_file}, and a shard contains "
                f"{largest} images; the index counts, the field is not used"
            )
    shares = preflight.data.order.mixture.shares
    if len(shares) > 1:
        preflight.facts["mixture"] = " : ".join(map(str, shares))
    if preflight.boxes is not None:
        preflight.facts["objects"] = str(preflight.boxes)


def held_out(preflight: Preflight) -> Iterator[Problem]:
    """Read the annotations of a detector's held-out images, or index them with the classes of the training images."""
    spec, split = preflight.spec, preflight.spec.dataset.val_dataset
    if not has_held_out(spec):
        if spec.dataset.knn_validation or (is_taught(preflight.task) and "evaluate" in spec.distill.then):
            yield Problem("an evaluation needs held-out images", f"{VAL}.tar_data_sources")
    elif training_task(spec, preflight.task).reads_boxes:
        list_shards(split, VAL)
        if preflight.boxes is not None:
            preflight.facts["held-out objects"] = str(read_split(split, preflight.boxes.classes, VAL))
    else:
        names = preflight.data.index.classes or list(preflight.class_names) if preflight.data else None
        place, limit = preflight.index_dir / "val", spec.dataset.max_pixels
        preflight.held_out = build_index(
            split, VAL, place, max_pixels=limit, classes=names, scan=preflight.scan, patience=_patience(preflight)
        )


def detector(preflight: Preflight) -> Iterator[Problem]:
    """Determine the structure of the detector, and compare its teachers' files with the spec."""
    spec, models = preflight.spec, preflight.models
    if models is None or preflight.boxes is None:
        return
    architecture = detector_architecture(spec, models.architecture, preflight.boxes.classes)
    if models.teachers:
        yield from teacher_file_problems(spec)
    preflight.binding_widths = detector_widths(spec, architecture, models.teachers, models.infos)
    preflight.detector = architecture


def labels(preflight: Preflight) -> Iterator[Problem]:
    """Compare the labels of the images with the classes of student and teachers."""
    spec, models, data = preflight.spec, preflight.models, preflight.data
    if models is None or data is None:
        return
    number = models.architecture.num_classes
    problems = list(label_problems(spec, models.teachers, models.infos, data, number))
    yield from problems
    if number and preflight.held_out is not None and not problems:
        problems, preflight.held_out_notes = held_out_labels(preflight.held_out, number)
        yield from problems
        preflight.warnings += preflight.held_out_notes
    classless = spec.model.task is ModelTask.features and not number
    if is_taught(preflight.task) and spec.dataset.num_classes and classless:
        preflight.warnings.append(
            "dataset.num_classes: the student gets no classifier, as neither labels (distill.alpha) nor class "
            "scores of a teacher (mode logits) would train it"
        )


def head_fit(preflight: Preflight) -> None:
    """Determine the heads that are fitted before the first step, and the steps whose images they are fitted to."""
    spec, models = preflight.spec, preflight.models
    if preflight.data is None or models is None or not is_taught(preflight.task):
        return
    total = total_steps(spec, preflight.steps_per_epoch)
    preflight.heads_to_fit = heads = heads_to_fit(spec, models)
    preflight.head_fit_steps = steps = fit_steps(spec, models, heads, total)
    if heads:
        listed = ", ".join(f"{name} {kind}" for name, kind in heads)
        preflight.facts["heads fitted"] = (
            f"before step 1, by ridge regression on the first {steps * spec.global_batch_size} images: {listed}"
        )


def length(preflight: Preflight) -> None:
    """Record the samples of a step, and the steps of the run, as facts."""
    if preflight.data is None:
        return
    spec, steps, batch = preflight.spec, preflight.steps_per_epoch, preflight.spec.global_batch_size
    total = total_steps(spec, steps)
    each = spec.dataset.batch_size
    preflight.facts["global batch"] = f"{batch} samples = {batch // each} micro-batches of {each}"
    preflight.facts["length"] = f"{steps} steps an epoch, {total} steps in all, {total * batch} samples"
