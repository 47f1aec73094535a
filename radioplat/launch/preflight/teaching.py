"""Facts for `plan` about teachers: partitions, stages, sizes, targets and devices."""

from __future__ import annotations

import math
from pathlib import Path

from radioplat.common.listing import first_few
from radioplat.data.views.equivariance import SLACK, room
from radioplat.data.views.view_plan import Equivariance
from radioplat.design.models import Models, target_widths
from radioplat.design.partitions import Partitions
from radioplat.design.student import build_on_meta
from radioplat.design.views import run_views
from radioplat.exporting.weights.export import FORMATS
from radioplat.launch.preflight.preflight import Preflight
from radioplat.losses.registry import criterion
from radioplat.losses.target_transforms.hadamard import has_hadamard
from radioplat.spec.loading.load import changed_fields
from radioplat.spec.loading.tao_objective import tao_differences, tao_signs
from radioplat.spec.resolved.image_sizes import partition_sizes, stages_of
from radioplat.spec.resolved.teacher import AVERAGE, teacher_names
from radioplat.spec.schema.distill import AverageView, PartitionConfig, Scheme, Source, TargetNormFit, TargetNormType
from radioplat.spec.schema.root import Compat
from radioplat.teachers.base.teacher import spec_mismatches
from radioplat.training.targets.transforms import normed

ROLES = {Source.ema: "the student's average", Source.deeper: "the student itself", Source.peer: "peer"}


def partitions(preflight: Preflight) -> None:
    """Record as a fact which teachers see which micro-batches."""
    spec, config = preflight.spec, preflight.spec.distill.partitions
    if not config or preflight.problems:
        return
    names, total = teacher_names(spec.distill.teacher), spec.global_batch_size // spec.dataset.batch_size
    parts = Partitions.of(config, spec.train.seed, total)
    lines = [
        f"{count}{_sizes(part)} seen by {', '.join(n for n in names if n in teachers) or 'none of them'}"
        for count, teachers, part in zip(parts.counts, parts.teachers, config, strict=True)
    ]
    everywhere = [name for name in names if not any(name in teachers for teachers in parts.teachers)]
    lines += [f"all seen by {', '.join(everywhere)}"] if everywhere else []
    preflight.facts["partitions"] = f"of the {total} micro-batches of a step {'; '.join(lines)}"


def _sizes(partition: PartitionConfig) -> str:
    """Return the sizes of a partition for ``plan``; empty if it sets none."""
    sizes = partition_sizes(partition)
    if len(sizes) > 1:
        return f" at {', '.join(f'{size} ({chance:.0%})' for size, chance in sizes)} px"
    return f" at {sizes[0][0]} px" if sizes else ""


def stages(preflight: Preflight) -> None:
    """Record steps, size, learning rate and teachers of each stage as facts."""
    spec = preflight.spec
    names, optim = teacher_names(spec.distill.teacher), spec.train.optim
    for stage in stages_of(spec) if spec.distill.stages and not preflight.problems else ():
        size = f"{stage.img_size} px" if stage.img_size else "sizes as elsewhere"
        who = ", ".join(name for name in names if stage.has(name))
        rate = f"lr {optim.rate if stage.lr is None else stage.lr:g}"
        fact = f"steps {stage.first} to {stage.stop}, {size}, {rate} ({optim.policy.value}), taught by {who}"
        preflight.facts[f"stage {stage.index + 1}"] = fact


def left_out_heads(preflight: Preflight) -> None:
    """Warn of heads that ``export`` after the run leaves out because its format does not support them."""
    spec, models = preflight.spec, preflight.models
    form = FORMATS.get(spec.export.format)
    if models is None or not models.teachers or form is None or "export" not in spec.distill.then:
        return
    student = build_on_meta(models.architecture)
    for problem in form.problems(student, () if spec.export.adaptors else student.head_names):
        preflight.warnings.append(f"export.format={spec.export.format.value}: {problem.message}; it is left out")


def targets(preflight: Preflight) -> None:
    """Record as a fact how targets are transformed; warn of widths without a Hadamard matrix."""
    spec, models = preflight.spec, preflight.models
    kinds = normed(models.teachers) if models is not None else {}
    if models is None or not kinds:
        return
    config, widths = spec.distill.target_norm, target_widths(models.infos)
    pairs = zip(models.teachers, spec.distill.teacher, strict=True)
    own = {(teacher.name, "spatial"): teacher.where for teacher, given in pairs if given.spatial_norm_type}
    for key, norm in kinds.items():
        if norm is TargetNormType.phi_s and not has_hadamard(widths[key]):
            where = f"{own[key]}.spatial_norm_type" if key in own else "distill.target_norm.type"
            preflight.warnings.append(
                f"{where}: no Hadamard matrix of order {widths[key]} can be made for the {key[1]} of "
                f"{key[0]}; an orthogonal one from random signs, turned until all variances are 1, takes its place"
            )
    how = f"measured over {config.fit_batches} global batches before the first step"
    if config.fit is TargetNormFit.running:
        how = f"measured anew every {config.refresh_steps} steps until step {config.freeze_after}"
    elif config.fit is TargetNormFit.with_step:
        how = f"measured with each step, the matrix anew every {config.refresh_steps}, until step {config.freeze_after}"
    elif config.path is not None and Path(config.path).exists():
        how = f"from {config.path}"
    preflight.facts["targets"] = f"{', '.join(dict.fromkeys(norm.value for norm in kinds.values()))}, {how}"


def losses(preflight: Preflight) -> None:
    """Record as a fact which losses compare what of each teacher, and what is done to its targets."""
    models, distill = preflight.models, preflight.spec.distill
    taught = [teacher for teacher in models.teachers if teacher.terms] if models is not None else []
    lines = []
    for teacher in taught:
        parts = []
        for term in teacher.terms:
            weight = "" if term.weight == 1 else f" times {term.weight:g}"
            norm = teacher.norms.get(term.kind)
            if norm and criterion(term, 1, distill).raw:
                norm = None
            sides = "of both sides" if term.kind in teacher.raw_kinds else "of its targets"
            parts.append(f"{term.kind} by {term.loss.value}{weight}" + (f" after {norm.value} {sides}" if norm else ""))
        lines.append(f"{teacher.name}: {', '.join(parts)}; all times {teacher.loss_lambda:g}")
    if lines:
        count = len(preflight.spec.distill.teacher)
        divided = f"; divided by {count} teachers" if distill.mean_over_teachers and count > 1 else ""
        scaled = "" if distill.loss_scale == 1 else f"; times {distill.loss_scale:g}"
        preflight.facts["losses"] = f"{'; '.join(lines)}{divided}{scaled}"


def compat(preflight: Preflight) -> None:
    """Propose ``compat: tao`` for a spec that looks like TAO's, with what it would change; warn where ours differs."""
    changed = changed_fields(preflight.spec)
    signs = tao_signs(changed)
    as_tao = preflight.spec.compat is Compat.tao
    for i, teacher in enumerate(preflight.spec.distill.teacher if signs or as_tao else ()):
        if teacher.input_size and teacher.match_student_resolution is None:
            preflight.warnings.append(
                f"distill.teacher[{i}] gets images of its input_size, {teacher.input_size} pixels; TAO gives it the "
                "student's size unless match_student_resolution is false"
            )
    if as_tao or not signs or not preflight.spec.distill.teacher:
        return
    fields = ", ".join(tao_differences(changed))
    preflight.warnings.append(
        f"this spec has fields of TAO's ({first_few(signs, 5)}), and TAO trains another objective by its defaults: the "
        f"line compat: tao sets {fields}"
    )


def unshifted_views(preflight: Preflight) -> None:
    """Warn of views that are to be shifted and whose patches are too large for any shift."""
    equivariance = Equivariance.of(preflight.spec.dataset.train_dataset)
    if preflight.models is None or equivariance is Equivariance.full:
        return
    models = preflight.models
    for view in run_views(preflight.spec, models.teachers, models.infos, models.student_stride):
        if (view.shifted or equivariance is Equivariance.shift) and not room(view, view.size):
            preflight.warnings.append(
                f"the {view.name}'s view of {view.size} px is never shifted: its patches have {view.patch} px, "
                f"and the margin is {SLACK / (1 - SLACK):.0%} of its side"
            )


def scheme(preflight: Preflight) -> None:
    """Record the distillation scheme as a fact; warn of settings that contradict its name."""
    spec, models = preflight.spec, preflight.models
    scheme, mesa = spec.distill.scheme, spec.distill.mesa
    if models is None:
        return
    if mesa.weight:
        view = "another crop" if mesa.view is AverageView.shifted else "the same view"
        preflight.facts["mesa"] = f"weight {mesa.weight:g} from step {mesa.start_step}, the average sees {view}"
        stop = spec.train.max_steps or (stages_of(spec)[-1].stop if spec.distill.stages else None)
        if stop is not None and mesa.start_step >= stop:
            preflight.warnings.append(f"distill.mesa.start_step is {mesa.start_step}, and the run ends at step {stop}")
    if scheme is Scheme.reverse:
        preflight.facts["scheme"] = "reverse: small teachers teach a larger student; it runs as offline does"
        backbone = backbone_parameters(models)
        for teacher in models.teachers:
            size = models.infos[teacher.name].parameters
            if size >= backbone:
                preflight.warnings.append(
                    f"{teacher.where}: scheme reverse, and the teacher ({size / 1e6:.2f} M parameters) is not smaller "
                    f"than the student's backbone ({backbone / 1e6:.2f} M)"
                )
    elif scheme is not Scheme.offline:
        who = (f"{t.name} ({ROLES[t.source]})" for t in models.teachers if t.inside)
        preflight.facts["scheme"] = f"{scheme.value}: {', '.join(who)}"
    if models.teachers and all(teacher.source is Source.ema for teacher in models.teachers):
        where = "distill.teacher"
        if any(teacher.view != AVERAGE for teacher in models.teachers):
            where += "[].view: the student's average sees what the student sees"
        warning = f"{where}: the student's average is the only teacher, so the student can only agree with itself"
        preflight.warnings.append(warning)


def backbone_parameters(models: Models) -> int:
    """Count the parameters of the student's backbone."""
    return sum(p.numel() for p in build_on_meta(models.architecture).backbone.parameters())


def unusual_inputs(preflight: Preflight) -> None:
    """Warn of teachers with other inputs than they were trained on."""
    if (models := preflight.models) is None:
        return
    for teacher in models.teachers:
        if not teacher.inside:
            info = models.infos[teacher.name]
            preflight.warnings += [f"{teacher.where}: {mismatch}" for mismatch in spec_mismatches(teacher, info)]


def devices(preflight: Preflight) -> None:
    """Record the devices for training and decoding as facts."""
    spec, resources = preflight.spec, preflight.resources
    if preflight.models is None or resources is None:
        return
    fewest, most = spec.worker_bounds
    if not resources.gpus:
        count = f"{fewest}" if fewest == most else f"{fewest} to {most}"
        fact = f"no GPU here: {count} CPU worker(s) instead of train.num_gpus={spec.train.num_gpus}"
        preflight.facts["device"] = fact
    cpus = f" on {resources.cpus:g} CPUs" if math.isfinite(resources.cpus) else ""  # a cluster that was not asked
    preflight.facts["decode"] = f"{spec.dataset.workers * most} decode task(s){cpus}"
