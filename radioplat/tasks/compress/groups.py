"""The stages as groups: what is judged, and begun again, together."""

from __future__ import annotations

from dataclasses import dataclass

from radioplat.spec.checks.tasks.compress import CHANGES_STUDENT, RELAXES, stage_names
from radioplat.spec.schema.compress import CompressConfig, Stage


@dataclass(frozen=True)
class Step:
    """One stage at its place.

    Attributes:
        name: ``02_retrain``, unlike any other of the chain.
    """

    stage: Stage
    name: str

    @property
    def changes_student(self) -> bool:
        """Whether another student is what it leaves."""
        return self.stage in CHANGES_STUDENT


@dataclass(frozen=True)
class Group:
    """Stages with one gate behind them.

    What takes something away is judged after the retraining that directly follows it, and where too little is kept,
    both are begun again with a milder setting of the first.
    """

    steps: tuple[Step, ...]

    @property
    def gated(self) -> bool:
        """Whether there is a student to judge. What ``distill`` leaves is what others are compared with."""
        return self.steps[0].changes_student and self.steps[0].stage is not Stage.distill

    @property
    def relaxes(self) -> bool:
        """Whether it has a milder setting."""
        return self.steps[0].stage in RELAXES


def groups_of(config: CompressConfig) -> list[Group]:
    """All stages, in order."""
    groups: list[Group] = []
    for stage, name in zip(config.stages, stage_names(config), strict=True):
        step = Step(stage, name)
        if stage is Stage.retrain and groups and len(groups[-1].steps) == 1 and groups[-1].relaxes:
            groups[-1] = Group((*groups[-1].steps, step))
        else:
            groups.append(Group((step,)))
    return groups
