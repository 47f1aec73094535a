"""What `plan` says of the teaching: who teaches what and when, at which sizes, and to which targets."""

from __future__ import annotations

from pathlib import Path

from radioplat.data.views.equivariance import SLACK, room
from radioplat.data.views.view_plan import Equivariance
from radioplat.design.models import Models, target_widths
from radioplat.design.partitions import Partitions
from radioplat.design.views import run_views
from radioplat.errors import RadioplatError
from radioplat.losses.target_transforms.hadamard import has_hadamard
from radioplat.spec.resolved.image_sizes import stages_of
from radioplat.spec.resolved.teacher import teacher_names
from radioplat.spec.schema.distill import TargetNormFit, TargetNormType
from radioplat.spec.schema.root import Spec
from radioplat.tasks.plan.findings import Plan
from radioplat.training.targets.file import problems as file_problems
from radioplat.training.targets.transforms import normed


def partitions_found(spec: Spec, result: Plan) -> None:
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


def stages_found(spec: Spec, result: Plan) -> None:
    """What is when."""
    names, optim = teacher_names(spec.distill.teacher), spec.train.optim
    for stage in stages_of(spec) if spec.distill.stages else ():
        size = f"{stage.img_size} px" if stage.img_size else "sizes as elsewhere"
        who = ", ".join(name for name in names if stage.has(name))
        rate = f"lr {optim.lr if stage.lr is None else stage.lr:g}"
        fact = f"steps {stage.first} to {stage.stop}, {size}, {rate} ({optim.policy.value}), taught by {who}"
        result.facts[f"stage {stage.index + 1}"] = fact


def moves_found(spec: Spec, models: Models, result: Plan) -> None:
    """Views that are to be shifted, and cannot be."""
    equivariance = Equivariance.of(spec.dataset.train_dataset)
    if equivariance is not Equivariance.full:
        for view in run_views(spec, models.teachers, models.infos, models.student_stride):
            moves = view.shifted or equivariance is Equivariance.shift
            if moves and not room(view, view.size):
                result.warnings.append(
                    f"the {view.name}'s view of {view.size} px is never shifted: its patches have {view.patch} px, "
                    f"and there is room for {SLACK / (1 - SLACK):.0%} of its side"
                )


def target_norm_found(spec: Spec, models: Models, result: Plan) -> None:
    """How targets are transformed, and whether statistics that others took are of these teachers."""
    config, widths = spec.distill.target_norm, target_widths(models.infos)
    kinds = normed(models.teachers)
    pairs = zip(models.teachers, spec.distill.teacher, strict=True)
    own = {(teacher.name, "spatial"): teacher.where for teacher, given in pairs if given.spatial_norm_type}
    for key, norm in kinds.items():
        if norm is TargetNormType.phi_s and not has_hadamard(widths[key]):
            where = f"{own[key]}.spatial_norm_type" if key in own else "distill.target_norm.type"
            result.warnings.append(
                f"{where}: no Hadamard matrix of order {widths[key]} can be made for the {key[1]} of "
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
