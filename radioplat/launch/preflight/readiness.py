"""Preflight steps on the environment of a start: weights, devices, the cluster, checkpoints."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from radioplat.cluster.ray_cluster import cluster_resources, uses_ray
from radioplat.cluster.resources import Resources, demand_of, shortages
from radioplat.compression.pruning.prune import dry_run
from radioplat.design.models import target_widths
from radioplat.design.quantized import count_quantizers
from radioplat.design.start_warnings import start_warnings
from radioplat.design.student import build_on_meta
from radioplat.errors import PlacementError, Problem, WeightsError, problems_of
from radioplat.evaluation.measure.needs import metric_facts, missing
from radioplat.evaluation.metrics.metric import Inputs
from radioplat.launch.preflight.preflight import Level, Preflight
from radioplat.models.pretrained.initial_weights import start_notes
from radioplat.spec.checks.tasks.prune import prune_problems
from radioplat.spec.checks.tasks.training_task import is_taught
from radioplat.spec.resolved.paths import no_such_weights
from radioplat.spec.resolved.precision import precision_of
from radioplat.spec.schema.prune import PruneConfig
from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.train import Precision
from radioplat.spec.weights.address import is_address
from radioplat.teachers.base.teacher import check_weights
from radioplat.training.accounting.folder_versions import check_run
from radioplat.training.checkpoints.checkpoint import survey
from radioplat.training.checkpoints.resume import blocked_by, unreachable
from radioplat.training.hooks.own_hook import hook_problems
from radioplat.training.targets.file import problems as file_problems
from radioplat.training.targets.transforms import normed


def teacher_weights(preflight: Preflight) -> None:
    """Read the weights of each teacher, except those of a named pool that are on other machines.

    Weights that were not fetched are a problem of the spec already.

    Raises:
        WeightsError: weights cannot be read or do not fit; names every such teacher.
    """
    problems: list[Problem] = []
    for teacher in preflight.models.teachers if preflight.models else ():
        elsewhere = teacher.service.pool and teacher.weights and not Path(teacher.weights).exists()
        if teacher.weights and not elsewhere and not is_address(teacher.weights):
            problems += problems_of(check_weights, teacher)
    if problems:
        raise WeightsError(*problems)


def target_statistics(preflight: Preflight) -> Iterator[Problem]:
    """Check that a file of statistics belongs to these teachers."""
    path, models = preflight.spec.distill.target_norm.path, preflight.models
    if models and path is not None and Path(path).exists() and any(teacher.norms for teacher in models.teachers):
        yield from file_problems(path, models.teachers, target_widths(models.infos))


def student_weights(preflight: Preflight) -> None:
    """Match the pretrained weights with the student by their shapes.

    Raises:
        WeightsError: a file is missing or does not fit the student.
    """
    spec = preflight.spec
    paths = {
        "model.backbone.pretrained_backbone_path": spec.model.backbone.pretrained_backbone_path,
        "train.pretrained_model_path": spec.train.pretrained_model_path,
    }
    missing_files = [no_such_weights(path, where) for where, path in paths.items() if path and not Path(path).exists()]
    if problems := [problem for problem in missing_files if not is_address(paths[problem.where])]:
        raise WeightsError(*problems)
    if missing_files:  # not fetched
        return
    if preflight.models is not None:
        architecture = preflight.models.architecture
        if architecture.quantized is not None:
            preflight.facts["quantized student"] = count_quantizers(build_on_meta(architecture))
        preflight.start_notes += start_notes(spec, architecture)
        preflight.start_notes += start_warnings(spec, architecture)


def step_hooks(preflight: Preflight) -> Iterator[Problem]:
    """Import the user's own step hooks."""
    yield from hook_problems(preflight.spec)


def placement(preflight: Preflight) -> Iterator[Problem]:
    """Check that this machine or the cluster can run the workers and the teachers."""
    spec = preflight.spec
    if preflight.resources is None:  # an earlier step could not find them out
        preflight.on_ray = uses_ray(spec)
        preflight.resources = cluster_resources(spec) if preflight.on_ray else Resources.this_machine()
    gpus = preflight.resources.gpus > 0
    if precision_of(spec.train) is Precision.fp16 and not gpus:
        hint = "Take bf16, which a CPU without bf16 units emulates, or fp32."
        yield Problem("fp16 needs a GPU, and there is none", "train.precision", hint)
    preflight.warnings += padding_notes(spec)
    if preflight.on_ray and preflight.models is not None:
        outer = [teacher for teacher in preflight.models.teachers if not teacher.inside]
        if problems := list(shortages(demand_of(spec, outer, gpus), preflight.resources)):
            raise PlacementError(*problems)


def padding_notes(spec: Spec) -> Iterator[str]:
    """Yield a warning about numbers of workers with which some get padding instead of micro-batches."""
    micro_batches = spec.global_batch_size // spec.dataset.batch_size
    fewest, most = spec.worker_bounds
    padded = [size for size in range(fewest, min(most, micro_batches) + 1) if micro_batches % size]
    if fewest < most and padded:
        sizes = ", ".join(map(str, padded))
        yield f"{micro_batches} micro-batches a step do not divide among {sizes} workers: some get padding, and wait"
    if most > micro_batches:
        yield (
            f"a step has {micro_batches} micro-batch(es): of {most} workers {most - micro_batches} would get padding "
            "only; raise train.global_batch_size, or lower dataset.batch_size or the number of workers"
        )


def evaluation(preflight: Preflight) -> Iterator[Problem]:
    """Check the inputs of the metrics; for a run only if an evaluation follows it."""
    spec, follows = preflight.spec, "evaluate" in preflight.spec.distill.then and is_taught(preflight.task)
    if preflight.held_out is None or (preflight.level < Level.plan and not follows):
        return
    architecture = preflight.models.architecture if preflight.models else None
    index = preflight.data.index if preflight.data else None
    yield from missing(spec, Inputs(architecture, index, preflight.held_out))
    planned = ["kNN where there are labels, fidelity", *metric_facts(spec)]
    preflight.facts["evaluation"] = "; ".join(planned)


def pruning(preflight: Preflight) -> Iterator[Problem]:
    """Check task ``prune`` without executing it, if the spec has such a section."""
    spec = preflight.spec
    if preflight.models is None or spec.prune == PruneConfig():
        return
    problems, architecture = list(prune_problems(spec)), preflight.models.architecture
    yield from problems
    small = architecture.quantized is not None or architecture.low_rank or architecture.sparsity is not None
    # A student that is compressed already is not pruned, nor one that another checkpoint's pruning begins with.
    if not problems and not small and spec.prune.checkpoint is None:
        dry_run(architecture, spec.prune)


def checkpoints(preflight: Preflight) -> Iterator[Problem]:
    """Check the records and checkpoints that the run would resume from, and the folders of their copies."""
    spec = preflight.spec
    yield from problems_of(check_run, preflight.folder)
    yield from unreachable(spec, preflight.task)
    preflight.checkpoints = survey(preflight.folder)
    order = preflight.data.order_fields(spec.global_batch_size, spec.dataset.max_pixels) if preflight.data else None
    models, heads = preflight.models, None
    if models is not None and preflight.detector is None:
        measured = {name for name, _ in normed(models.teachers)}
        heads = {head.name: head.name in measured for head in models.architecture.heads}
    problems = list(blocked_by(spec, preflight.task, preflight.folder, preflight.checkpoints, order, heads))
    if spec.train.restart:
        preflight.warnings += [f"train.restart will set it aside: {problem}" for problem in problems]
    else:
        yield from problems
