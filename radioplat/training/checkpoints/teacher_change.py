"""Go on from a checkpoint with other teachers: ``train.allow_teacher_change``.

What both have stays: the backbone, the heads of teachers that stay, their moments and averages. Heads and class tokens
of new teachers begin anew, with moments of zero, and those of removed teachers are left out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from radioplat.errors import Problem
from radioplat.models.student.architecture import StudentArchitecture
from radioplat.models.vision_model import VisionModel, open_architecture

FIELD = "train.allow_teacher_change"
_HEADS, _TOKENS = "heads.", "cls_token.token"
State = dict[str, torch.Tensor]


@dataclass(frozen=True)
class TeacherChange:
    """The way from a checkpoint to a student with other heads.

    Attributes:
        added, removed: names of the heads that only the student, and only the checkpoint, has.
    """

    old: StudentArchitecture
    new: StudentArchitecture
    fresh: State  # the student's own tensors, as it was built

    @property
    def added(self) -> list[str]:
        """Names of the teachers without a head in the checkpoint."""
        return [head.name for head in self.new.heads if head.name not in {each.name for each in self.old.heads}]

    @property
    def removed(self) -> list[str]:
        """Names of the teachers of the checkpoint that the student has no head for."""
        return [head.name for head in self.old.heads if head.name not in {each.name for each in self.new.heads}]

    def weights(self, tensors: Mapping[str, torch.Tensor]) -> State:
        """Return the checkpoint's weights by the student's names, with the student's own where it has none."""
        return self._followed(tensors, self.fresh)

    def averages(self, tensors: Mapping[str, torch.Tensor]) -> State:
        """Return averages of weights by the student's names; those of new heads are left out."""
        return {name: value for name, value in self._followed(tensors, self.fresh).items() if name in tensors}

    def moments(self, tensors: Mapping[str, torch.Tensor], names: Sequence[str]) -> State:
        """Return the content of an optimizer file with the moments ``names`` for the student's weights.

        Those of new heads are left out, which stands for zeros; rows of new class tokens are zeros.
        """
        result = dict(tensors)
        for suffix in (f".{name}" for name in names):
            mine = {key.removesuffix(suffix): result.pop(key) for key in tensors if key.endswith(suffix)}
            zeros = {name: torch.zeros_like(value, dtype=torch.float32) for name, value in self.fresh.items()}
            followed = self._followed(mine, zeros)
            result |= {f"{name}{suffix}": value for name, value in followed.items() if name in mine}
        return result

    def _followed(self, tensors: Mapping[str, torch.Tensor], fresh: State) -> State:
        result = dict(fresh)
        for name, value in tensors.items():
            own = fresh.get(name)
            if own is None and name.startswith(_HEADS):
                continue  # of a removed teacher
            if own is not None and _TOKENS in name:
                result[name] = self._tokens(value, own)
            elif own is None or own.shape == value.shape or not name.startswith(_HEADS):
                result[name] = value
        return result

    def _tokens(self, old: torch.Tensor, own: torch.Tensor) -> torch.Tensor:
        """Return class tokens and registers ``[T + R, D]`` in the student's order."""
        rows, slots = own.detach().clone().cpu(), {head.name: head.token_slot for head in self.old.heads}
        for head in self.new.heads:
            if head.name in slots:
                rows[head.token_slot] = old[slots[head.name]]
        registers = old[self.old.num_class_tokens :]
        kept = min(len(registers), len(rows) - self.new.num_class_tokens)
        rows[self.new.num_class_tokens : self.new.num_class_tokens + kept] = registers[:kept]
        return rows


def teacher_change(checkpoint: Path, student: VisionModel) -> TeacherChange | None:
    """Return the change from the heads of ``checkpoint`` to those of ``student``; None if they are the same."""
    old, new = open_architecture(checkpoint).student, student.architecture.student
    if [(head.name, head.token_slot) for head in old.heads] == [(head.name, head.token_slot) for head in new.heads]:
        return None
    return TeacherChange(old, new, {name: value.detach().cpu() for name, value in student.state_dict().items()})


def teacher_problems(checkpoint: Path, name: str, heads: Mapping[str, bool], allowed: bool) -> Iterator[Problem]:
    """Yield a problem if the student at ``checkpoint``, called ``name``, has other heads and may not be gone on from.

    Args:
        heads: of the run's student, by name; True if the teacher's targets are normalized.
        allowed: whether the teachers may change.
    """
    there = [head.name for head in open_architecture(checkpoint).student.heads]
    added, removed = ([each for each in a if each not in b] for a, b in ((heads, there), (there, heads)))
    if (added or removed) and not allowed:
        parts = [f"it has no head for {', '.join(added)}"] if added else []
        parts += [f"the spec has no teacher {', '.join(removed)}"] if removed else []
        hint = f"Undo the change, choose another results_dir, or accept it with {FIELD}=true."
        yield Problem(f"{name} was trained by other teachers: {'; '.join(parts)}", "distill.teacher", hint)
    elif unmeasured := [each for each in added if heads[each]]:
        message = f"the targets of {', '.join(unmeasured)} are measured before the first step alone, which is past"
        hint = "Set their spatial_norm_type and summary_norm_type to none, or begin a new run from these weights."
        yield Problem(message, FIELD, hint)
