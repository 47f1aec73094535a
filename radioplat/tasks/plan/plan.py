"""``radioplat plan``: look for what can go wrong, and tell what the run will take, before any actor starts."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from radioplat.cluster.ray_cluster import Offer, demand_of, offer, shortages, uses_ray
from radioplat.compression.pruning.dry_run import rehearse
from radioplat.data.index.build import build_index
from radioplat.data.index.shard_index import ShardIndex
from radioplat.data.loading.run_data import RunData
from radioplat.design.device import device_problems
from radioplat.design.labels import class_names, label_problems
from radioplat.design.memory import parameter_bytes
from radioplat.design.models import Models, design_models
from radioplat.design.quantized import count_quantizers
from radioplat.design.run import steps_per_epoch
from radioplat.design.stages import total_steps
from radioplat.design.start_warnings import start_warnings
from radioplat.design.student import build_on_meta
from radioplat.errors import DataError, Problem, RadioplatError
from radioplat.evaluation.measure.needs import metric_facts, missing
from radioplat.evaluation.metrics.metric import Inputs
from radioplat.evaluation.models.held_out_labels import held_out_labels
from radioplat.models.pretrained.start import start_notes
from radioplat.spec.checks.tasks.prune import prune_problems
from radioplat.spec.checks.tasks.run import check
from radioplat.spec.checks.training.detection import detects
from radioplat.spec.resolved.image_sizes import without_teaching
from radioplat.spec.resolved.paths import is_remote
from radioplat.spec.resolved.retired import retired_field_notes
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.spec.resolved.zero import zero_stage
from radioplat.spec.schema.cluster import TeacherServiceConfig
from radioplat.spec.schema.prune import PruneConfig
from radioplat.spec.schema.root import Spec
from radioplat.tasks.export.export import task_folder
from radioplat.tasks.plan.accepts import accepted_tasks
from radioplat.tasks.plan.detection import detector_found
from radioplat.tasks.plan.findings import ModelLine, Plan, SourceLine
from radioplat.tasks.plan.planned_task import next_task, trained_by
from radioplat.tasks.plan.scheme import inside_lines, mesa_lines, scheme_found
from radioplat.tasks.plan.teaching import moves_found, partitions_found, stages_found, target_norm_found
from radioplat.teachers.base.teacher import check_weights, compute_dtype, oddities
from radioplat.training.checkpoints.resume import blocked_by, unreachable


def plan(spec: Spec, task: str | None = None) -> Plan:
    """Look at spec, weights, shards and cluster; never raises for what it looks for, every finding is a problem.

    Args:
        task: ``distill``, ``train`` or, for the training of ``quantize.mode: qat``, ``quantize``; default: what the
            spec is for.
    """
    chosen, why = (task, "") if task else next_task(spec)
    try:
        spec, task, notes = trained_by(spec, chosen)
    except RadioplatError as error:
        return Plan(problems=list(error.problems))
    notes = [*retired_field_notes(spec), *notes]
    result = Plan(problems=check(spec, task), warnings=notes, facts={"task": why} if why else {})
    if any(problem.where == "results_dir" for problem in result.problems):
        return result  # an index would be made below it
    spec = spec if task == "distill" else without_teaching(spec)
    if task == "distill" and not result.problems:
        partitions_found(spec, result)
        stages_found(spec, result)
    models = _models(spec, task, result)
    data = _data(spec, result)
    held_out = _validation(spec, models, data, result)
    if held_out is not None and not detects(spec):
        architecture = models.architecture if models else None
        result.problems += missing(spec, Inputs(architecture, data.index if data else None, held_out))
        lines = ["kNN where there are labels, fidelity", *metric_facts(spec)]
        result.facts["evaluation"] = "; ".join(lines)
    detector = detector_found(spec, models, result) if detects(spec) and models is not None else None
    if models is not None:
        result.tasks = accepted_tasks(models.architecture)
        moves_found(spec, models, result)
        if spec.prune != PruneConfig():
            _prune(spec, models, result)
        _placement(spec, models, result, detector)
    if data is not None:
        _length(spec, data, result)
    if models is not None and data is not None:
        classes = models.architecture.num_classes
        problems = list(label_problems(spec, models.teachers, models.infos, data, classes))
        result.problems += problems
        if classes and held_out is not None and not problems and not detects(spec):
            labels = held_out_labels(held_out, classes)
            result.problems += labels.problems
            result.warnings += labels.notes
        if task == "distill" and spec.dataset.num_classes and not classes:
            result.warnings.append(
                "dataset.num_classes: the student gets no classifier, as neither labels (distill.alpha) nor class "
                "scores of a teacher (mode logits) would teach it"
            )
    result.problems += unreachable(spec, task)
    blocking = list(blocked_by(spec, task, task_folder(spec, task)))
    if spec.train.restart:
        result.warnings += [f"train.restart will set it aside: {problem}" for problem in blocking]
    else:
        result.problems += blocking
    result.problems = list(dict.fromkeys(result.problems))
    return result


def _models(spec: Spec, task: str, result: Plan) -> Models | None:
    try:
        models = design_models(spec, task)
    except RadioplatError as error:
        result.problems += error.problems
        return None
    for teacher in models.teachers:
        if teacher.weights:
            try:
                check_weights(teacher)
            except RadioplatError as error:
                result.problems += error.problems
    target_norm_found(spec, models, result)
    for name in (
        "model.backbone.pretrained_backbone_path",
        "train.pretrained_model_path",
        "train.resume_training_checkpoint_path",
    ):
        section, *rest = name.split(".")
        value = getattr(spec, section)
        for part in rest:
            value = getattr(value, part)
        if value and not is_remote(value) and not Path(value).exists():
            result.problems.append(Problem(f"no such file: {value}", name))
    if models.architecture.quantized is not None:
        result.facts["quantized student"] = count_quantizers(build_on_meta(models.architecture))
    try:
        result.warnings += start_notes(spec, models.architecture)
        result.warnings += start_warnings(spec, models.architecture)
    except RadioplatError as error:
        result.problems += error.problems
    return models


def _prune(spec: Spec, models: Models, result: Plan) -> None:
    """What the task ``prune`` will refuse, where the spec has a section for it."""
    found, form = list(prune_problems(spec)), models.architecture
    result.problems += found
    if found or form.quantized is not None or form.low_rank or form.sparsity is not None:
        return  # a student that comes smaller already is trained on, not pruned
    try:
        rehearse(form, spec.prune)
    except RadioplatError as error:
        result.problems += error.problems


def _data(spec: Spec, result: Plan) -> RunData | None:
    index_dir = Path(spec.dataset.index_dir or Path(spec.results_dir) / "index")
    split = spec.dataset.train_dataset
    try:
        index = build_index(split, "dataset.train_dataset", index_dir / "train", max_pixels=spec.dataset.max_pixels)
        data = RunData.create(index, split, spec.dataset.max_pixels)
        order = data.order
    except RadioplatError as error:
        result.problems += error.problems
        return None
    if len(index.faults):
        reasons, counts = np.unique(index.faults["reason"].to_pylist(), return_counts=True)
        result.warnings.append(
            "unusable members in the shards: " + ", ".join(f"{c} {r}" for r, c in zip(reasons, counts, strict=True))
        )
    _check_samples_per_file(spec, data, result)
    steps = steps_per_epoch(spec, data)
    shares = order.mixture.shares
    paths = [s.root_dir for s in split.tar_data_sources] + ([split.images_dir] if split.images_dir else [])
    for i, path in enumerate(paths):
        share = shares[i] / sum(shares)
        result.sources.append(
            SourceLine(
                str(path),
                len(data.index.rows_of(i)),
                data.kept_of(i),
                data.rejected(i),
                share,
                round(share * steps * spec.global_batch_size),
            )
        )
    result.facts["mixture"] = " : ".join(str(s) for s in shares)
    return data


def _check_samples_per_file(spec: Spec, data: RunData, result: Plan) -> None:
    for i, source in enumerate(spec.dataset.train_dataset.tar_data_sources):
        shards = data.index.shards_of(i)
        largest = int(data.index.shards["rows"].to_numpy()[shards.start : shards.stop].max(initial=0))
        if largest > source.samples_per_file:
            result.warnings.append(
                f"dataset.train_dataset.tar_data_sources[{i}].samples_per_file is {source.samples_per_file}, "
                f"and a shard holds {largest} images; the index counts, the field is not used"
            )


def _validation(spec: Spec, models: Models | None, data: RunData | None, result: Plan) -> ShardIndex | None:
    split = spec.dataset.val_dataset
    wanted = "evaluate" in spec.distill.then or spec.dataset.knn_validation
    if not (split.tar_data_sources or split.images_dir):
        if wanted:
            result.problems.append(
                Problem("an evaluation needs held-out images", "dataset.val_dataset.tar_data_sources")
            )
        return None
    try:
        index_dir = Path(spec.dataset.index_dir or Path(spec.results_dir) / "index")
        classes = data.index.classes if data else None
        if data and models:
            classes = classes or list(class_names(data, models.architecture.num_classes, models.teachers, models.infos))
        limit = spec.dataset.max_pixels
        return build_index(split, "dataset.val_dataset", index_dir / "val", max_pixels=limit, classes=classes)
    except DataError as error:
        result.problems += error.problems
    return None


def _placement(spec: Spec, models: Models, result: Plan, detector: int | None = None) -> None:
    """Where everything runs and what it takes.

    Args:
        detector: parameters of the one that is trained.
    """
    try:
        on_ray = uses_ray(spec)
        there = offer(spec) if on_ray else Offer.this_machine()
    except RadioplatError as error:
        result.problems += error.problems
        return
    gpus = there.gpus > 0
    world, most = spec.worker_bounds  # what one worker holds is told of the fewest
    if on_ray:
        asked = [teacher for teacher in models.teachers if not teacher.inside]
        result.problems += shortages(demand_of(spec, asked, gpus), there)
    result.problems += device_problems(spec, gpus)
    device = "GPU" if gpus else "CPU"
    count = f"{world}" if world == most else f"{world} to {most}"
    result.warnings += padding_notes(spec)
    taken, parameters = parameter_bytes(spec.train, world), detector or models.student_parameters
    aside = ", optimizer on the host" if spec.train.offload else ""
    result.models.append(
        ModelLine(
            "student",
            "detector" if detector else "student and heads",
            parameters,
            taken.of(parameters),
            f"{count} {device} worker(s)" if on_ray else f"this process, {device}",
            f"{spec.train.precision.value}, ZeRO-{zero_stage(spec.train)}{aside}, stride {models.student_stride}",
        )
    )
    scheme_found(spec, models, result)
    for teacher in models.teachers:
        if teacher.inside:
            result.models += inside_lines(spec, models, teacher, world)
            continue
        result.warnings += [f"{teacher.where}: {oddity}" for oddity in oddities(teacher, models.infos[teacher.name])]
        info, service = models.infos[teacher.name], teacher.service
        size = 2 if "16" in str(compute_dtype(service.precision, there.device)) else 4
        inline = not on_ray or service.placement.value == "inline"
        where = "inside each worker" if inline else _actors(service)
        result.models.append(
            ModelLine(
                teacher.name,
                "teacher",
                info.parameters,
                info.parameters * size,
                where,
                f"{'+'.join(sorted(teacher.wanted))} at {_pixels(teacher)} px, map {info.grid[0]}x{info.grid[1]} "
                f"sent at {models.grids[teacher.name][0]}x{models.grids[teacher.name][1]}; {info.needs}"
                + (f"; the mean of {len(teacher.ensemble)}" if teacher.ensemble else ""),
            )
        )
    result.models += mesa_lines(spec, models)
    if not gpus:
        result.facts["device"] = f"no GPU here: {count} CPU worker(s) instead of train.num_gpus={spec.train.num_gpus}"
    _feature_cache(spec, models, result)
    result.facts["decode"] = f"{spec.dataset.workers * most} decode task(s) on {there.cpus:g} CPUs"


def padding_notes(spec: Spec) -> Iterator[str]:
    """Numbers of workers at which some would get padding instead of micro-batches."""
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


def _actors(service: TeacherServiceConfig) -> str:
    least, most = service.bounds
    count = f"{least} to {most}" if most > least else f"{least}"
    return f"{count} actor(s), {service.placement.value}" + (f", pool {service.pool}" if service.pool else "")


def _feature_cache(spec: Spec, models: Models, result: Plan) -> None:
    """What a sample takes in the cache, and for how many there is room."""
    cache = spec.feature_cache
    numbers = 0
    for teacher in models.teachers if cache.dir else ():
        if teacher.inside:
            continue
        info, (rows, columns) = models.infos[teacher.name], models.grids[teacher.name]
        sizes = {"summary": info.summary_dim, "spatial": rows * columns * info.spatial_dim, "logits": info.logits_dim}
        sizes |= {key: math.prod(shape) for key, shape in info.named.items()}
        numbers += sum(sizes[kind] for kind in teacher.wanted) if teacher.service.cache and teacher.mosaic == 1 else 0
    if numbers:
        room = cache.max_bytes // (2 * numbers)
        result.facts["feature cache"] = f"{cache.dir}: {2 * numbers:,} bytes a sample, room for {room:,} samples"


def _pixels(teacher: ResolvedTeacher) -> str:
    if teacher.mosaic > 1:
        return f"{teacher.input_size} ({teacher.mosaic} x {teacher.mosaic} of the student's images)"
    if teacher.upsample_factor > 1 and not teacher.sizes:
        return f"{teacher.view_size} (the whole at {teacher.input_size}, and {teacher.upsample_factor**2} tiles)"
    return ", ".join(f"{size} ({chance:.0%})" for size, chance in teacher.sizes) or str(teacher.input_size)


def _length(spec: Spec, data: RunData, result: Plan) -> None:
    steps = steps_per_epoch(spec, data)
    total = total_steps(spec, steps)
    batch = spec.global_batch_size
    result.facts["global batch"] = (
        f"{batch} samples = {batch // spec.dataset.batch_size} micro-batches of {spec.dataset.batch_size}"
    )
    result.facts["length"] = f"{steps} steps an epoch, {total} steps in all, {total * batch} samples"
