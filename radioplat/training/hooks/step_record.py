"""Figures of one optimizer step: of this rank, then reduced over all ranks."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch.distributed as dist

from radioplat.common import collectives
from radioplat.teachers.serving.packed_features import Packed
from radioplat.training.hooks.step_sums import LOSS, StepSums

_WAITS = ("wait_data", "wait_teachers", "wait_students")
IMBALANCE = "imbalance"  # among `figures`: time of the slowest rank over the mean of all ranks


@dataclass(frozen=True)
class StepDecision:
    """Decision whether a step may update the weights; equal on all ranks.

    Attributes:
        skip: why the step is skipped, as text for users; empty if it is not skipped.
        reason: the same as an identifier, for rejected samples in the ledger.
    """

    skip: str = ""
    reason: str = "skipped_step"


CONTINUE = StepDecision()


@dataclass
class StepRecord:
    """The figures of one step: of this rank until the ranks have exchanged theirs (:meth:`reduce`), then of all.

    Attributes:
        values: losses as means over the global batch, set by ``reduce``; empty if the step is skipped.
        sums: numbers of the hooks (:meth:`StepHook.sums`) over all ranks, as ``<hook>/<name>``, set by ``reduce``.
        not_finite: names of the losses that were not finite on any rank, set by ``reduce``.
        wait: seconds this rank waited for data and teachers, including the forward passes of inline teachers on a CPU.
        wait_data, wait_teachers, wait_students: the parts of ``wait``; ``reduce`` replaces each by the greatest value
            of all ranks. The last is for workers of other students, which were more than a step behind.
        teacher_seconds: compute seconds of each teacher for this rank's micro-batches; summed over ranks by ``reduce``.
        received: (images, bytes of their features) of each teacher that answered; summed over ranks by ``reduce``.
        cached: (hits, misses) of each teacher that has a feature cache; summed over ranks by ``reduce``.
        seconds: from the beginning of the step to its end.
        period: seconds since the end of the step before, with a save between them and without validation;
            ``seconds`` for the first step.
        decision: decision whether the step may update the weights.
        moved: True if the weights were updated; False if the step was skipped or its gradients were not finite.
        figures: figures of the hooks, by name.
    """

    step: int
    learning_rate: float
    values: dict[str, float] = field(default_factory=dict)
    sums: dict[str, float] = field(default_factory=dict)
    not_finite: list[str] = field(default_factory=list)
    teacher_seconds: dict[str, float] = field(default_factory=dict)
    received: dict[str, tuple[int, int]] = field(default_factory=dict)
    cached: dict[str, tuple[int, int]] = field(default_factory=dict)
    wait: float = 0.0
    wait_data: float = 0.0
    wait_teachers: float = 0.0
    wait_students: float = 0.0
    seconds: float = 0.0
    period: float = 0.0
    decision: StepDecision = CONTINUE
    moved: bool = False
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def skipped(self) -> bool:
        """True if a hook decided to skip the update."""
        return bool(self.decision.skip)

    def answered(self, teacher: str, packed: Packed) -> None:
        """Count a teacher's answer to a micro-batch that is not padding."""
        self.teacher_seconds[teacher] = self.teacher_seconds.get(teacher, 0.0) + packed.seconds
        images, size = self.received.get(teacher, (0, 0))
        self.received[teacher] = (images + len(packed), size + packed.nbytes)
        if packed.cached is not None:
            hits, misses = self.cached.get(teacher, (0, 0))
            self.cached[teacher] = (hits + packed.cached[0], misses + packed.cached[1])

    def share(self, sums: StepSums, numbers: Mapping[str, float]) -> None:
        """Give this rank's figures and ``numbers`` of the hooks to ``sums``, and start to add up those of all ranks."""
        # A sum with a name for each rank keeps the numbers of all of them, of which the greatest is taken.
        rank = "0" if collectives.alone() else str(dist.get_rank())
        for name in _WAITS:
            sums.count(name, {rank: getattr(self, name)})
        sums.count("teacher_seconds", self.teacher_seconds)
        for kind, pairs in (("received", self.received), ("cached", self.cached)):
            for place in (0, 1):
                sums.count(f"{kind}/{place}", {teacher: pair[place] for teacher, pair in pairs.items()})
        sums.count("hooks", numbers)
        sums.start()

    def reduce(self, sums: StepSums, micro_batches: int) -> None:
        """Wait for ``sums``, and set the figures to those of all ranks; ``micro_batches`` is their number in a step."""
        sums.finish()
        totals = sums.totals
        self.values = {name: total / micro_batches for name, total in totals.get(LOSS, {}).items()}
        self.not_finite = sums.not_finite
        self.sums = totals.get("hooks", {})
        for name in _WAITS:
            setattr(self, name, max(totals[name].values()))
        self.teacher_seconds = totals.get("teacher_seconds", {})
        self.received, self.cached = _pairs(totals, "received"), _pairs(totals, "cached")


def _pairs(totals: dict[str, dict[str, float]], kind: str) -> dict[str, tuple[int, int]]:
    first, second = (totals.get(f"{kind}/{place}", {}) for place in (0, 1))
    return {name: (int(first[name]), int(second[name])) for name in first}
