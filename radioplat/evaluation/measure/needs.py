"""Requirements of an evaluation, checked before anything is encoded: files, labels, accepted image sizes."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from radioplat.errors import Problem
from radioplat.evaluation.measure.registry import METRICS
from radioplat.evaluation.metrics.metric import Inputs
from radioplat.evaluation.models.view_sizes import size_problems
from radioplat.models.student.architecture import classes_differ
from radioplat.models.student.student import sequence_problems
from radioplat.spec.checks.tasks.evaluate import evaluation_problems
from radioplat.spec.schema.root import Spec


def missing(spec: Spec, inputs: Inputs) -> list[Problem]:
    """Return a problem for each metric that is requested and cannot be measured, naming the field to set."""
    if problems := list(evaluation_problems(spec)):
        return problems
    requested = [metric for metric in METRICS if metric.requested(spec.evaluate)]
    return [
        *_processes(spec),
        *_resolutions(spec, inputs),
        *_tokens(spec, inputs),
        *_classes(inputs),
        *(problem for metric in requested for problem in metric.problems(spec, inputs)),
    ]


def metric_facts(spec: Spec) -> list[str]:
    """Return lines about the requested metrics, then one about the others."""
    config = spec.evaluate
    facts = [fact for metric in METRICS if metric.requested(config) for fact in metric.facts(spec)]
    return [*facts, *not_requested(spec)]


def not_requested(spec: Spec) -> list[str]:
    """Return a line with the metrics that the spec leaves out and the fields that request them; none if it has all."""
    unused = [option for metric in METRICS for option in metric.unused_options(spec.evaluate)]
    listed = ", ".join(f"{name} (evaluate.{field})" for name, field in unused)
    return [f"not asked for: {listed}"] if unused else []


def _processes(spec: Spec) -> Iterator[Problem]:
    count, cards = spec.evaluate.num_gpus, torch.cuda.device_count()
    if cards and count > cards:
        yield Problem(f"{count} GPUs, and this machine has {cards}", "evaluate.num_gpus", f"Take {cards}.")


def _resolutions(spec: Spec, inputs: Inputs) -> Iterator[Problem]:
    sizes = {f"evaluate.resolutions[{i}]": size for i, size in enumerate(spec.evaluate.resolutions)}
    if spec.dataset.val_img_size:
        sizes = {"dataset.val_img_size": spec.dataset.val_img_size, **sizes}
    if inputs.architecture is not None and sizes:
        yield from size_problems(inputs.architecture, sizes)


def _tokens(spec: Spec, inputs: Inputs) -> Iterator[Problem]:
    if spec.evaluate.num_tokens and inputs.architecture is not None:
        yield from sequence_problems(inputs.architecture, "evaluate.num_tokens")


def _classes(inputs: Inputs) -> Iterator[Problem]:
    """Yield a problem if the classifier has other classes than the labels of the images."""
    architecture, train = inputs.architecture, inputs.train
    if architecture is None or train is None or not architecture.num_classes:
        return
    if difference := classes_differ(architecture.class_names, train.classes):
        message = f"the classes of the student's classifier are not those of the images: {difference}"
        hint = "Labels are numbered by the sorted names of the train split: give the one it was trained on."
        yield Problem(message, "dataset.train_dataset", hint)
