"""Measure target statistics while the student trains (``distill.target_norm.fit: running`` and ``with_step``).

The state changes only with optimizer steps: with ``running``, the targets of all ranks in a step are added after it if
it is not skipped; with ``with_step``, before its first loss. The result does not depend on the number of ranks, and a
checkpoint contains all of it.
"""

from __future__ import annotations

import torch

from radioplat.common import collectives
from radioplat.data.batch import View
from radioplat.losses.target_transforms.moments import MomentSums
from radioplat.models.features import Features
from radioplat.models.student.student import Student
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.spec.schema.distill import TargetNormConfig, TargetNormFit
from radioplat.training.hooks.step_hook import StepHook
from radioplat.training.hooks.step_record import StepRecord
from radioplat.training.targets.transforms import Key, counting, empty_moments, set_transforms

TARGET_NORM = "target_norm"
_PARTS = ("count", "total", "outer")


class RunningNorm(StepHook):
    """Sum moments of the targets since the first step, and recompute the transforms from them at intervals.

    With ``fit: before`` it does nothing. With ``running``, transforms are recomputed after step 1, after each multiple
    of ``refresh_steps``, and for the last time after step ``freeze_after``. With ``with_step``, before each step, the
    matrices only before steps 0, ``refresh_steps``, 2 ``refresh_steps``, and so on; for the last time before step
    ``freeze_after``, counted from 0.
    """

    name = TARGET_NORM

    def __init__(
        self,
        student: Student,
        teachers: list[ResolvedTeacher],
        config: TargetNormConfig,
        device: torch.device,
        start: int = 0,
    ) -> None:
        """Initialize empty moments; ``start`` is the global step at which training begins."""
        self._student, self._config = student, config
        self._teachers = [] if config.fit is TargetNormFit.before else teachers
        self._with_step = config.fit is TargetNormFit.with_step
        self._known = empty_moments(student, self._teachers, torch.device("cpu"))  # of all ranks
        self._since = empty_moments(student, self._teachers, device)  # of this rank, since the last all-reduce
        self._step = empty_moments(student, self._teachers, device)  # of this rank, in the current step
        self._bases: dict[Key, torch.Tensor] = {}
        self._frozen = start >= config.freeze_after + self._with_step

    @property
    def needs_step_targets(self) -> bool:
        """Whether :meth:`targets_arrived` has to be called before the first loss of a step."""
        return bool(self._known) and self._with_step

    def targets_arrived(self, step: int) -> None:
        """With ``with_step``: add the targets of ``step``, and recompute the transforms; every rank must call it.

        Targets that are not finite are left out: the guard decides about their step.

        Raises:
            TrainingError: the sums of earlier steps were not finite.
        """
        if not self.needs_step_targets or self._frozen:
            return
        with collectives.mark_agreed():
            for key, moments in self._step.items():
                arrived = moments.over_ranks(collectives.total)
                moments.clear()
                if all(bool(torch.isfinite(part).all()) for part in arrived.moments().parts()):
                    self._known[key].merge(arrived)
            self._set(means_only=step % self._config.refresh_steps != 0)
        self._frozen = step >= self._config.freeze_after

    def see(self, name: str, features: Features, weight: torch.Tensor, view: View | None = None) -> None:
        """Add the answer of teacher ``name`` to ``view``; samples of ``weight`` 0 and hidden positions are excluded."""
        for (other, kind), moments in self._step.items():
            if other == name and not self._frozen:
                values = getattr(features, kind)
                moments.add(values, counting(kind, values, weight, view))

    def end_step(self, record: StepRecord) -> None:
        """Add the targets of the step, or discard them if it was skipped; see :meth:`step`."""
        with collectives.mark_agreed():
            self.step(record.step, commit=not record.skipped)

    def step(self, step: int, commit: bool) -> None:
        """Add the targets of ``step`` to the moments, or discard them unless ``commit``; every rank must call it.

        The transforms are recomputed when due.

        Raises:
            TrainingError: a target was not finite.
        """
        if not self._known or self._frozen or self._with_step:
            return
        for key, moments in self._step.items():
            if commit:
                self._since[key].merge(moments)
            moments.clear()
        done = step + 1
        if done in (1, self._config.freeze_after) or done % self._config.refresh_steps == 0:
            self._put_together()
            self._set()
        self._frozen = done >= self._config.freeze_after

    def begin_with(self, moments: dict[Key, MomentSums]) -> None:
        """Add ``moments`` of all ranks, from which the current transforms were computed, to those of the run.

        Heads were fitted with these transforms: statistics of the first step alone would replace them by others.
        """
        for key in self._known.keys() & moments.keys():
            self._known[key].merge(moments[key])

    def load_state_dict(self, state: dict[str, torch.Tensor]) -> None:
        """Restore moments and bases of the teachers for which they are still measured."""
        for (name, kind), moments in self._known.items():
            stem = f"{TARGET_NORM}.{name}.{kind}"
            if f"{stem}.count" in state:
                moments.load([state[f"{stem}.{part}"] for part in _PARTS])
            if f"{stem}.basis" in state:
                self._bases[name, kind] = state[f"{stem}.basis"]

    def state_dict(self) -> dict[str, torch.Tensor]:
        """Return moments of all ranks and the transforms' bases; every rank must call this."""
        self._put_together()
        state = {
            f"{TARGET_NORM}.{name}.{kind}.{part}": tensor
            for (name, kind), moments in self._known.items()
            for part, tensor in zip(_PARTS, moments.state(), strict=True)
        }
        bases = {f"{TARGET_NORM}.{n}.{kind}.basis": basis.clone() for (n, kind), basis in self._bases.items()}
        return state | bases

    def _put_together(self) -> None:
        for key, moments in self._since.items():
            self._known[key].merge(moments.over_ranks(collectives.total))
            moments.clear()

    def _set(self, means_only: bool = False) -> None:
        """Recompute the transforms, or their means alone."""
        known = {key: moments.moments() for key, moments in self._known.items()}
        self._bases = set_transforms(self._student, self._teachers, known, self._bases, means_only=means_only)
