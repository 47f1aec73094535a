"""The arms of a fork: their names, changes and specs."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from radioplat.errors import SpecError
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.teacher import teacher_names
from radioplat.spec.schema.root import Spec
from radioplat.tasks.shared.go_on import going_on
from radioplat.tracking.results import EXPERIMENT

UNCHANGED, WITHOUT = "unchanged", "without"
_FOLDER = "Choose the folder by --out."
# What a fork decides for its arms, which may not set it, with advice.
_OWN = {
    "results_dir": _FOLDER,
    "distill.results_dir": _FOLDER,
    "distill.then": "Give these commands for an arm's folder.",
    "train.resume_training_checkpoint_path": "Choose the step by --at.",
    "train.checkpoint_dir": _FOLDER,
    "train.allow_teacher_change": "It is true for all arms.",
    "train.restart_order": "All arms see the same images. For others, start a run with "
    "train.resume_training_checkpoint_path.",
}


@dataclass(frozen=True)
class Arm:
    """One run of a fork.

    Attributes:
        name: of its folder.
        changes: overrides of the run's spec, and ``without=TEACHER``.
    """

    name: str
    changes: tuple[str, ...]


def arms_of(changes: Sequence[str], arms: Sequence[Sequence[str]], control: bool) -> list[Arm]:
    """Return the arms: the run as it was, if ``control``, and one for each of ``arms``, or one with ``changes`` alone.

    Args:
        changes: overrides of every arm but the control.
        arms: further overrides of each.

    Raises:
        SpecError: two arms differ in nothing, or a field is set that places a run.
    """
    for change in (*changes, *(each for arm in arms for each in arm)):
        if change.partition("=")[0] in _OWN:
            hint = _OWN[change.partition("=")[0]]
            raise SpecError("a fork decides this for each arm", where=change.partition("=")[0], hint=hint)
    made = [Arm(UNCHANGED, ())] if control else []
    for own in arms or [()]:
        whole = (*changes, *own)
        made.append(Arm(_name(own or changes) if whole else UNCHANGED, whole))
    for i, arm in enumerate(made):
        if any(sorted(arm.changes) == sorted(other.changes) for other in made[:i]):
            hint = "Give each arm another key=value."
            raise SpecError(
                f"two arms have the same changes: {' '.join(arm.changes) or 'none'}", where="--arm", hint=hint
            )
    names = [arm.name for arm in made]
    return [Arm(f"{a.name}_{i}" if names.count(a.name) > 1 else a.name, a.changes) for i, a in enumerate(made)]


def spec_of(arm: Arm, run: Path, checkpoint: Path, out: Path) -> Spec:
    """Return the spec of an arm, which goes on from ``checkpoint`` of the run in ``run``.

    Raises:
        SpecError: its changes are no overrides of a spec.
    """
    own = going_on(load_spec(run / EXPERIMENT), checkpoint, out / arm.name)
    removed = [change.partition("=")[2] for change in arm.changes if change.startswith(f"{WITHOUT}=")]
    changes = [change for change in arm.changes if not change.startswith(f"{WITHOUT}=")]
    # The arm's changes come last: a global batch of its own is then refused as another order.
    spec = load_spec(run / EXPERIMENT, [*own, "train.allow_teacher_change=true", *changes])
    for name in removed:
        spec = _without(spec, name)
    return spec


def _without(spec: Spec, name: str) -> Spec:
    """Return a spec without a teacher.

    Raises:
        SpecError: it has none of this name, or no other.
    """
    names = teacher_names(spec.distill.teacher)
    if name not in names or len(names) == 1:
        hint = f"Teachers: {', '.join(names)}; one has to stay."
        raise SpecError(f"no arm can be without a teacher {name!r}", where=WITHOUT, hint=hint)
    left = [teacher for known, teacher in zip(names, spec.distill.teacher, strict=True) if known != name]
    partitions = [
        replace(part, teachers=[teacher for teacher in part.teachers if teacher != name])
        for part in spec.distill.partitions
    ]
    services = {known: service for known, service in spec.teachers.items() if known != name}
    return replace(spec, teachers=services, distill=replace(spec.distill, teacher=left, partitions=partitions))


def _name(changes: Sequence[str]) -> str:
    """Return a name for a folder from overrides: ``optim.lr=0.001`` of ``train.optim.lr=0.001``."""
    words = [".".join(field.split(".")[-2:]) + "=" + value for field, _, value in (c.partition("=") for c in changes)]
    return re.sub(r"[^\w.=+-]+", "_", "_".join(words))[:60].strip("_") or "arm"
