"""Figures of one optimizer step: of this rank, then reduced over all ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import chain

import torch

from radioplat.common import collectives
from radioplat.teachers.serving.packed_features import Packed


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
    """The figures of one step.

    Attributes:
        values: losses, summed over this rank's micro-batches; :meth:`reduce` turns them into means over the global
            batch.
        wait: seconds this rank waited for data and teachers, including the forward passes of inline teachers on a CPU.
        wait_data, wait_teachers: the two parts of ``wait``; ``reduce`` replaces each by the greatest value of all
            ranks.
        teacher_seconds: compute seconds of each teacher for this rank's micro-batches; summed over ranks by ``reduce``.
        received: (images, bytes of their features) of each teacher that answered; summed over ranks by ``reduce``.
        cached: (hits, misses) of each teacher that has a feature cache; summed over ranks by ``reduce``.
        decision: decision whether the step may update the weights.
        moved: True if the weights were updated; False if the step was skipped or its gradients were not finite.
        figures: figures of the hooks, by name.
    """

    step: int
    learning_rate: float
    values: dict[str, float] = field(default_factory=dict)
    teacher_seconds: dict[str, float] = field(default_factory=dict)
    received: dict[str, tuple[int, int]] = field(default_factory=dict)
    cached: dict[str, tuple[int, int]] = field(default_factory=dict)
    wait: float = 0.0
    wait_data: float = 0.0
    wait_teachers: float = 0.0
    seconds: float = 0.0
    decision: StepDecision = CONTINUE
    moved: bool = False
    figures: dict[str, float] = field(default_factory=dict)

    @property
    def skipped(self) -> bool:
        """True if a hook decided to skip the update."""
        return bool(self.decision.skip)

    def add(self, losses: dict[str, torch.Tensor], share: float = 1.0) -> None:
        """Add the loss terms of a micro-batch (not padding), or of a piece that is the fraction ``share`` of one."""
        for name, value in losses.items():
            self.values[name] = self.values.get(name, 0.0) + share * float(value.detach())

    def answered(self, teacher: str, packed: Packed) -> None:
        """Count a teacher's answer to a micro-batch that is not padding."""
        self.teacher_seconds[teacher] = self.teacher_seconds.get(teacher, 0.0) + packed.seconds
        images, size = self.received.get(teacher, (0, 0))
        self.received[teacher] = (images + len(packed), size + packed.nbytes)
        if packed.cached is not None:
            hits, misses = self.cached.get(teacher, (0, 0))
            self.cached[teacher] = (hits + packed.cached[0], misses + packed.cached[1])

    def reduce(self, micro_batches: int, device: torch.device) -> None:
        """Reduce the figures over all ranks; losses become means over the global batch. Every rank must call this."""
        # Gather all names first: a rank with only padding has none, and others only those of their own teachers.
        waited = self.wait_data, self.wait_teachers
        known = collectives.gather_objects((list(self.values), list(self.teacher_seconds), list(self.cached), waited))
        *known, waits = zip(*known, strict=True)
        self.wait_data, self.wait_teachers = map(max, zip(*waits, strict=True))
        names, teachers, caches = (sorted(set().union(*of_ranks)) for of_ranks in known)
        packed = torch.tensor(
            [
                *(self.values.get(n, 0.0) for n in names),
                *(self.teacher_seconds.get(t, 0.0) for t in teachers),
                *chain.from_iterable(self.received.get(t, (0, 0)) for t in teachers),
                *chain.from_iterable(self.cached.get(t, (0, 0)) for t in caches),
            ],
            dtype=torch.float64,
            device="cpu" if device.type == "cpu" else device,
        )
        packed = collectives.total(packed).tolist()
        self.values = {} if self.skipped else {n: v / micro_batches for n, v in zip(names, packed, strict=False)}
        packed = packed[len(names) :]
        self.teacher_seconds = dict(zip(teachers, packed, strict=False))
        counts = map(int, packed[len(teachers) :])
        self.received = {teacher: (next(counts), next(counts)) for teacher in teachers}
        self.cached = dict(zip(caches, zip(counts, counts, strict=True), strict=True))
