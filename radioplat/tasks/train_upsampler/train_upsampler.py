"""The task ``train_upsampler``: train FeatSharp for one teacher, in this process."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from radioplat.common.cpu_threads import limit_torch_threads
from radioplat.errors import SpecError
from radioplat.spec.checks.tasks.training_run import check
from radioplat.spec.loading.load import load_spec, to_yaml
from radioplat.spec.resolved.teacher import ResolvedTeacher, resolve_teachers
from radioplat.spec.schema.root import Spec
from radioplat.tasks.train_upsampler.photographs import open_photographs
from radioplat.tasks.train_upsampler.training import Consistency, UpsamplerTraining
from radioplat.teachers.base.teacher import FrozenTeacher, describe
from radioplat.teachers.upsamplers.featsharp.checkpoint import save_upsampler
from radioplat.teachers.upsamplers.featsharp.featsharp import FeatSharp, FeatSharpConfig
from radioplat.tracking.results import TaskFolder, write_atomic
from radioplat.tracking.status import StatusLog
from radioplat.tracking.task_log import log_task

TASK = "train_upsampler"


@dataclass(frozen=True)
class UpsamplerResult:
    """Result of a training.

    Attributes:
        teacher: its name in the spec.
        path: ``upsampler.safetensors``.
        folder: of the task.
        before, after: errors of FeatSharp and of bilinear upsampling on held-out images.
        held_out: number of held-out images.
    """

    teacher: str
    path: Path
    folder: Path
    before: Consistency
    after: Consistency
    held_out: int


def train_upsampler(
    spec: str | Path | Mapping[str, Any] | Spec,
    overrides: Sequence[str] = (),
    *,
    progress: Callable[[int, int], None] | None = None,
) -> UpsamplerResult:
    """Train the upsampler of ``train_upsampler.teacher``, by default the only teacher, on ``dataset.train_dataset``.

    The same spec gives the same upsampler. A rerun starts from the beginning and replaces earlier results.

    Args:
        spec: a YAML file, a mapping of sections, or a :class:`~radioplat.spec.schema.root.Spec`; it is not changed.
        overrides: ``key=value``, applied to it in order.
        progress: called with (steps done, number of steps).

    Returns:
        The upsampler at ``path``, and the errors before and after, beside those of bilinear upsampling.

    Raises:
        RadioplatError: invalid fields, no images, or weights that cannot be read.

    Example:
        >>> result = radioplat.train_upsampler("spec.yaml", ["train_upsampler.teacher=clip"])
        >>> result.path
        PosixPath('results/train_upsampler/upsampler.safetensors')
    """
    spec = load_spec(spec, overrides)
    if problems := check(spec, TASK):
        raise SpecError(*problems)
    folder = TaskFolder(spec.results_dir, TASK, spec.train_upsampler.results_dir)
    return log_task(folder, TASK, to_yaml(spec), lambda: _train(spec, folder, progress), _kpi)


def _train(spec: Spec, folder: TaskFolder, progress: Callable[[int, int], None] | None) -> UpsamplerResult:
    config, device = spec.train_upsampler, "cuda" if torch.cuda.is_available() else "cpu"
    teacher, factor = upsampled_teacher(spec)
    seed = spec.train.seed if config.seed is None else config.seed
    info = describe(teacher)
    built = FeatSharpConfig(
        info.spatial_dim, factor, info.grid, config.debias, config.width, config.heads, config.window
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = FeatSharp(built).to(device)
    images = open_photographs(spec, factor * teacher.input_size, config.held_out, seed)
    training = UpsamplerTraining(FrozenTeacher(teacher, device), model, config, seed)
    decoders = images.training.threads if device == "cpu" else 0
    with StatusLog(folder.status_path) as status, limit_torch_threads(decoders):
        batches = -(-config.fit_images // config.batch_size)
        training.fit(torch.cat(list(images.steps(batches, config.batch_size))))
        before = training.measure(images.held_out_batches(config.batch_size))
        status.write("before training", kpi=asdict(before))
        for step, loss, bilinear in training.train_on(images.steps(config.steps, config.batch_size)):
            if progress:
                progress(step, config.steps)
            if step % config.log_interval == 0 or step == config.steps:
                kpi = {"loss/featsharp": loss, "loss/bilinear": bilinear}
                status.write(f"step {step} of {config.steps}", kpi=kpi, step=step, max_step=config.steps)
        after = training.measure(images.held_out_batches(config.batch_size))
    path = folder.path / "upsampler.safetensors"
    save_upsampler(model, path, teacher=teacher.backbone.type or teacher.name, input_size=teacher.input_size)
    result = UpsamplerResult(teacher.name, path, folder.path, before, after, len(images.held_out.rows))
    figures = {"teacher": teacher.name, "before": asdict(before), "after": asdict(after), "held_out": result.held_out}
    write_atomic(folder.path / "results.json", json.dumps(figures, indent=1))
    return result


def upsampled_teacher(spec: Spec) -> tuple[ResolvedTeacher, int]:
    """Return the teacher without the upsampler that its entry may have, and the factor."""
    config = spec.train_upsampler
    teachers = resolve_teachers(spec)
    i = next(i for i, t in enumerate(teachers) if config.teacher in (None, t.name))
    factor = spec.distill.teacher[i].upsample_factor
    factor = config.upsample_factor or (factor if factor > 1 else 2)
    return dataclasses.replace(teachers[i], upsample_factor=1, upsampler_checkpoint=None), factor


def _kpi(result: UpsamplerResult) -> dict[str, float]:
    return {
        "consistency/bilinear": result.after.bilinear,
        "consistency/untrained": result.before.featsharp,
        "consistency/featsharp": result.after.featsharp,
    }
