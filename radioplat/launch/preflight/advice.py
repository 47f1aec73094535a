"""Advice of TAO's documentation on distillation, where it fits a run, and the unused parts of teachers' files."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import nn

from radioplat.design.student import build_on_meta
from radioplat.errors import WeightsError
from radioplat.launch.preflight.preflight import Preflight
from radioplat.launch.preflight.teaching import backbone_parameters
from radioplat.models.on_meta import on_meta
from radioplat.models.weights.downstream import Downstream, find_downstream
from radioplat.models.weights.read import read_checkpoint
from radioplat.spec.resolved.labels import classifies
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.spec.schema.model import ModelTask
from radioplat.teachers.adapters.registry import adapter_class
from radioplat.teachers.base.info import TeacherInfo

OWN_CODE = "code that this spec runs"  # title of the fact
_OBJECT = re.compile(r"[^\W\d]\w*(\.\w+)*:[^\W\d]\w*")
SMALL, FEW = 30_000_000, 100_000  # parameters of a student, and images; TAO gives no numbers, these are ours


def own_code(preflight: Preflight) -> None:
    """Record as a fact which ``package.module:name`` the spec names: whoever wrote it runs code here."""
    waiting: list[tuple[str, Any]] = [("", asdict(preflight.spec))]
    named: dict[str, str] = {}
    while waiting:
        path, value = waiting.pop()
        if isinstance(value, Mapping):
            waiting += [(f"{path}.{key}".lstrip("."), inner) for key, inner in value.items()]
        elif isinstance(value, (list, tuple)):
            waiting += [(f"{path}[{i}]", inner) for i, inner in enumerate(value)]
        elif isinstance(value, str) and _OBJECT.fullmatch(value):
            named[path] = value
    if named:
        preflight.facts[OWN_CODE] = ", ".join(f"{name} ({path})" for path, name in sorted(named.items()))


def advice(preflight: Preflight) -> None:
    """Record as a fact what TAO advises (Knowledge Distillation, Tips and Best Practices), where it fits the run."""
    if preflight.models is None or not any(not teacher.inside for teacher in preflight.models.teachers):
        return
    notes = [*_fine_tuning(preflight), *_unlike_structures(preflight), *_few_images(preflight)]
    if notes:
        preflight.facts["TAO's advice"] = "; ".join(notes)


def unused_parts(preflight: Preflight) -> None:
    """Record as a fact what is not used of teachers that are backbones in checkpoints of TAO's tasks."""
    notes = []
    for teacher in preflight.models.teachers if preflight.models else ():
        task = _task_of(teacher)
        if task and task.others:
            place = f"the backbone under {task.prefix!r} of TAO's {task.name}"
            notes.append(f"{teacher.name} is {place}, and this is not used: {task.unused}")
    if notes:
        preflight.facts["teachers' files"] = "; ".join(notes)


def _fine_tuning(preflight: Preflight) -> Iterator[str]:
    spec, models = preflight.spec, preflight.models
    assert models is not None
    if not classifies(spec) and spec.model.task is not ModelTask.detection:
        return
    general = [t.name for t in models.teachers if not t.inside and not _knows_a_task(t, models.infos[t.name])]
    if general:
        yield (
            f"the student learns a task that {', '.join(general)} may not have been trained on: fine-tune the teacher "
            "on the task's images first (radioplat train), and distil from it if it performs well"
        )


def _knows_a_task(teacher: ResolvedTeacher, info: TeacherInfo) -> bool:
    """Return True for classifiers, detectors, and backbones that TAO trained for another task than MAE."""
    task = _task_of(teacher)
    return (
        "logits" in teacher.wanted
        or bool(info.class_names)
        or info.adapter == "detector"
        or (task is not None and task.name != "MAE")
    )


def _unlike_structures(preflight: Preflight) -> Iterator[str]:
    models = preflight.models
    assert models is not None
    if _attends(student := build_on_meta(models.architecture).backbone) or not convolves(student):
        return
    vits = [teacher.name for teacher in models.teachers if not teacher.inside and _is_vit(teacher)]
    if vits:
        yield (
            f"the student is a CNN ({models.architecture.type}) and may struggle to learn from a ViT "
            f"({', '.join(vits)}): take a CNN as its teacher, or a ViT as student"
        )


def _few_images(preflight: Preflight) -> Iterator[str]:
    models, data = preflight.models, preflight.data
    assert models is not None
    if data is None:
        return
    images = sum(data.kept_of(i) for i in range(len(data.order.mixture.shares)))
    size = backbone_parameters(models)
    largest = max(info.parameters for info in models.infos.values())
    if images < FEW and size < min(SMALL, largest):
        yield (
            f"small students need more images, and this one ({size / 1e6:.2f} M parameters, its largest teacher "
            f"{largest / 1e6:.2f} M) has {images}: more epochs (train.num_epochs) and stronger augmentation "
            "(dataset.augmentation) help"
        )


def _task_of(teacher: ResolvedTeacher) -> Downstream | None:
    path = Path(teacher.weights or "")
    if teacher.inside or not path.is_file():
        return None
    state = path.stat()
    return _task_in(path, state.st_size, state.st_mtime_ns)


@functools.lru_cache(maxsize=16)
def _task_in(path: Path, size: int, mtime_ns: int) -> Downstream | None:
    """Return what the file contains; several pieces of advice ask. Size and time tell apart files of one path."""
    try:
        contents = read_checkpoint(path, shapes_only=True)
    except WeightsError:
        return None  # a file that its adapter reads by itself; advice refuses no run
    return find_downstream(contents.tensors, contents.metadata.get("tao_model", ""))


def _is_vit(teacher: ResolvedTeacher) -> bool:
    teacher = teacher.members[0]
    adapter = adapter_class(teacher)
    if not adapter.structure_without_weights:
        return False
    with on_meta():
        return _attends(adapter.build(teacher))


def _attends(module: nn.Module) -> bool:
    """Return True if there is attention in more than one place: a CNN can pool by it."""
    return sum("Attention" in type(part).__name__ for part in module.modules()) > 1


def convolves(module: nn.Module) -> bool:
    """Return True if there are convolutions besides one that cuts an image into patches."""
    kernels = [part.kernel_size for part in module.modules() if isinstance(part, nn.Conv2d)]
    return sum(max(kernel) > 1 for kernel in kernels) > 1
