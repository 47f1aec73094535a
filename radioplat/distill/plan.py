"""``radioplat plan``: look for what can go wrong, and tell what the run will take, before any actor starts."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np

from radioplat.data.equivariance import SLACK, room
from radioplat.data.index import build_index
from radioplat.data.recipe import Equivariance
from radioplat.data.run_data import RunData
from radioplat.data.shard_index import ShardIndex
from radioplat.distill.cluster import Offer, demand_of, offer, shortages, wants_ray
from radioplat.distill.labels import label_problems
from radioplat.distill.norm_file import problems as file_problems
from radioplat.distill.partitions import Partitions
from radioplat.distill.prepare import Models, design_models, steps_per_epoch, target_widths
from radioplat.distill.run_views import run_views
from radioplat.distill.stages import total_steps
from radioplat.distill.target_norm import normed
from radioplat.errors import DataError, Problem, RadioplatError
from radioplat.evaluate.needs import missing, not_asked
from radioplat.losses.hadamard import has_hadamard
from radioplat.models.start import start_notes
from radioplat.spec.check import check
from radioplat.spec.cluster import TeacherServiceConfig
from radioplat.spec.distill import TargetNormFit, TargetNormType
from radioplat.spec.resolve import ResolvedTeacher, teacher_names
from radioplat.spec.root import Spec
from radioplat.spec.sizes import stages_of, without_teaching
from radioplat.spec.train import Precision
from radioplat.teachers.teacher import check_weights, compute_dtype, oddities


@dataclass(frozen=True)
class ModelLine:
    """One model: parameters, what its weights (and optimizer) take in bytes, where it runs."""

    name: str
    role: str
    parameters: int
    memory: int
    placement: str
    detail: str = ""


@dataclass(frozen=True)
class SourceLine:
    """One source: images indexed and kept, its share of the mixture and what that means in an epoch."""

    path: str
    images: int
    kept: int
    rejected: dict[str, int]
    share: float
    samples_per_epoch: int


@dataclass
class Plan:
    """What `plan` found.

    Attributes:
        problems: what must be mended; empty if the run can start.
        warnings: what is odd but runs.
    """

    problems: list[Problem] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    models: list[ModelLine] = field(default_factory=list)
    sources: list[SourceLine] = field(default_factory=list)
    facts: dict[str, str] = field(default_factory=dict)


def plan(spec: Spec, task: str = "distill") -> Plan:
    """Look at spec, weights, shards and cluster; never raises for what it looks for, every finding is a problem."""
    result = Plan(problems=check(spec, task))
    spec = spec if task == "distill" else without_teaching(spec)
    if task == "distill" and not result.problems:
        _partitions(spec, result)
        _stages(spec, result)
    models = _models(spec, task, result)
    data = _data(spec, result)
    held_out = _validation(spec, data, result)
    if held_out is not None:
        architecture = models.architecture if models else None
        result.problems += missing(spec, architecture, data.index if data else None, held_out)
        result.facts["evaluation"] = "; ".join(["kNN where there are labels, fidelity", *not_asked(spec)])
    if models is not None:
        _moves(spec, models, result)
        _placement(spec, models, result)
    if data is not None:
        _length(spec, data, result)
    if models is not None and data is not None:
        result.problems += label_problems(spec, models.teachers, models.infos, data)
    result.problems = list(dict.fromkeys(result.problems))
    return result


def _partitions(spec: Spec, result: Plan) -> None:
    """Who sees what."""
    config, names = spec.distill.partitions, teacher_names(spec.distill.teacher)
    if not config:
        return
    whole = spec.global_batch_size // spec.dataset.batch_size
    partitions = Partitions.of(config, spec.train.seed, whole)
    parts = zip(partitions.counts, partitions.teachers, config, strict=True)
    lines = [
        f"{count}{f' at {part.img_size} px' if part.img_size else ''} "
        f"seen by {', '.join(n for n in names if n in who) or 'none of them'}"
        for count, who, part in parts
    ]
    everywhere = [name for name in names if not any(name in who for who in partitions.teachers)]
    lines += [f"all seen by {', '.join(everywhere)}"] if everywhere else []
    result.facts["partitions"] = f"of the {whole} micro-batches of a step {'; '.join(lines)}"


def _stages(spec: Spec, result: Plan) -> None:
    """What is when."""
    names, optim = teacher_names(spec.distill.teacher), spec.train.optim
    for stage in stages_of(spec) if spec.distill.stages else ():
        size = f"{stage.img_size} px" if stage.img_size else "sizes as elsewhere"
        who = ", ".join(name for name in names if stage.has(name))
        rate = f"lr {optim.lr if stage.lr is None else stage.lr:g}"
        fact = f"steps {stage.first} to {stage.stop}, {size}, {rate} ({optim.policy.value}), taught by {who}"
        result.facts[f"stage {stage.index + 1}"] = fact


def _moves(spec: Spec, models: Models, result: Plan) -> None:
    """Views that shift equivariance cannot move."""
    if Equivariance.of(spec.dataset.train_dataset) is Equivariance.shift:
        for view in run_views(spec, models.teachers, models.infos, models.student_stride):
            if not room(view, view.size):
                result.warnings.append(
                    f"the {view.name}'s view of {view.size} px is never shifted: its patches have {view.patch} px, "
                    f"and there is room for {SLACK / (1 - SLACK):.0%} of its side"
                )


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
    _target_norm(spec, models, result)
    for name in (
        "model.backbone.pretrained_backbone_path",
        "train.pretrained_model_path",
        "train.resume_training_checkpoint_path",
    ):
        section, *rest = name.split(".")
        value = getattr(spec, section)
        for part in rest:
            value = getattr(value, part)
        if value and not Path(value).exists():
            result.problems.append(Problem(f"no such file: {value}", name))
    try:
        result.warnings += start_notes(spec, models.architecture)
    except RadioplatError as error:
        result.problems += error.problems
    return models


def _target_norm(spec: Spec, models: Models, result: Plan) -> None:
    """How targets are transformed, and whether statistics that others took are of these teachers."""
    config, widths = spec.distill.target_norm, target_widths(models.infos)
    kinds = normed(models.teachers)
    for key, norm in kinds.items():
        if norm is TargetNormType.phi_s and not has_hadamard(widths[key]):
            result.warnings.append(
                f"distill.target_norm: no Hadamard matrix of order {widths[key]} can be made for the {key[1]} of "
                f"{key[0]}; an orthogonal one from random signs, turned until all variances are 1, takes its place"
            )
    if not kinds:
        return
    names = ", ".join(dict.fromkeys(norm.value for norm in kinds.values()))
    how = f"measured over {config.fit_batches} global batches before the first step"
    if config.fit is TargetNormFit.running:
        how = f"measured anew every {config.refresh_steps} steps until step {config.freeze_after}"
    elif config.path is not None and Path(config.path).exists():
        how = f"from {config.path}"
        try:
            result.problems += file_problems(config.path, models.teachers, widths)
        except RadioplatError as error:
            result.problems += error.problems
    result.facts["targets"] = f"{names}, {how}"


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


def _validation(spec: Spec, data: RunData | None, result: Plan) -> ShardIndex | None:
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
        limit = spec.dataset.max_pixels
        return build_index(split, "dataset.val_dataset", index_dir / "val", max_pixels=limit, classes=classes)
    except DataError as error:
        result.problems += error.problems
    return None


def _placement(spec: Spec, models: Models, result: Plan) -> None:
    try:
        on_ray = wants_ray(spec)
    except RadioplatError as error:
        result.problems += error.problems
        return
    there = offer(spec) if on_ray else Offer.this_machine()
    gpus = there.gpus > 0
    world = spec.world_size
    if on_ray:
        result.problems += shortages(demand_of(spec, models.teachers, gpus), there)
    device = "GPU" if gpus else "CPU"
    average = 4 if spec.train.enable_ema else 0
    master = 4 + (8 + average) // (world if spec.train.zero_stage else 1)
    compute = 2 if spec.train.precision is Precision.bf16 else 0
    result.models.append(
        ModelLine(
            "student",
            "student and heads",
            models.student_parameters,
            models.student_parameters * (master + compute + 4),
            f"{world} {device} worker(s)" if on_ray else f"this process, {device}",
            f"{spec.train.precision.value}, ZeRO-{spec.train.zero_stage}, stride {models.student_stride}",
        )
    )
    for teacher in models.teachers:
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
                f"sent at {models.grids[teacher.name][0]}x{models.grids[teacher.name][1]}; {info.needs}",
            )
        )
    if not gpus:
        result.facts["device"] = f"no GPU here: {world} CPU worker(s) instead of train.num_gpus={spec.train.num_gpus}"
    _feature_cache(spec, models, result)
    result.facts["decode"] = f"{spec.dataset.workers * world} decode task(s) on {there.cpus:g} CPUs"


def _actors(service: TeacherServiceConfig) -> str:
    least, most = service.bounds
    count = f"{least} to {most}" if most > least else f"{least}"
    return f"{count} actor(s), {service.placement.value}" + (f", pool {service.pool}" if service.pool else "")


def _feature_cache(spec: Spec, models: Models, result: Plan) -> None:
    """What a sample takes in the cache, and for how many there is room."""
    cache = spec.feature_cache
    numbers = 0
    for teacher in models.teachers if cache.dir else ():
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
