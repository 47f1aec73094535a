"""The order of stages: check it, and group the stages that one gate judges together."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from radioplat.errors import Problem
from radioplat.spec.schema.compress import CompressConfig, Stage
from radioplat.spec.schema.root import Spec
from radioplat.tasks.compress.definition import Product, StageDefinition
from radioplat.tasks.compress.stages import STAGES
from radioplat.tasks.graph.node import Graph, Node


@dataclass(frozen=True)
class Step:
    """One stage at its place in the chain.

    Attributes:
        name: ``02_retrain``, unique in the chain; also the name of its folder.
    """

    stage: Stage
    name: str

    @property
    def definition(self) -> StageDefinition:
        """The stage's entry in :data:`~radioplat.tasks.compress.stages.STAGES`."""
        return STAGES[self.stage]


@dataclass(frozen=True)
class Group:
    """Stages with one gate after them.

    A stage that makes the student smaller is judged after the retraining that directly follows it. If too much quality
    is lost, both run again, with a milder setting of the first.
    """

    steps: tuple[Step, ...]

    @property
    def gated(self) -> bool:
        """Whether a gate judges the group; students are compared with the one of ``distill``, which has none."""
        return self.steps[0].definition.changes_student and self.steps[0].stage is not Stage.distill


@dataclass(frozen=True)
class StageNode(Node):
    """A stage, or a retry of it, as a node of the chain's graph.

    Attributes:
        step: None for the starting student, which no stage writes.
        group: of the stage.
        attempt: number of the retry, 0 for the first attempt.
        changes: overrides of a retry.
    """

    step: Step | None = None
    group: Group = Group(())
    attempt: int = 0
    changes: tuple[str, ...] = ()


def graph_of(groups: Sequence[Group], first: str = "") -> Graph[StageNode]:
    """Return the chain as a graph: each stage needs the one before it, and reads the last result of each kind.

    Args:
        first: the name of the starting student; empty if the first stage begins one.
    """
    nodes, writers = [StageNode(first)] if first else [], {Product.student: first}
    for group in groups:
        for step in group.steps:
            reads = tuple(writers.get(product, "") for product in step.definition.reads)
            nodes.append(StageNode(step.name, tuple(node.name for node in nodes[-1:]), reads, step, group))
            writers[step.definition.product] = step.name
    return Graph(nodes)


def groups_of(config: CompressConfig) -> list[Group]:
    """Return all stages, in order."""
    groups: list[Group] = []
    for stage, name in zip(config.stages, stage_names(config), strict=True):
        step = Step(stage, name)
        alone = groups and len(groups[-1].steps) == 1
        if stage is Stage.retrain and alone and groups[-1].steps[0].definition.milder:
            groups[-1] = Group((*groups[-1].steps, step))
        else:
            groups.append(Group((step,)))
    return groups


def stage_names(config: CompressConfig) -> list[str]:
    """Return ``01_prune``, ``02_retrain``, ...: the stages' folders."""
    return [f"{i:02d}_{stage.value}" for i, stage in enumerate(config.stages, 1)]


def compress_problems(spec: Spec) -> Iterator[Problem]:
    """Yield contradictions in section ``compress``."""
    config = spec.compress
    if not config.stages:
        known = ", ".join(stage.value for stage in Stage)
        yield Problem("no stage is named", "compress.stages", f"Stages: {known}.")
    for i in range(len(config.stages)):
        if problem := _misplaced(config.stages, i):
            yield Problem(problem[0], f"compress.stages[{i}]", problem[1])
    names = [*(stage.value for stage in Stage), *stage_names(config)]
    for name in config.changes:
        if name not in names:
            yield Problem("no stage has this name", f"compress.changes.{name}", f"Stages: {', '.join(names)}.")
    val = spec.dataset.val_dataset
    if any(STAGES[stage].changes_student for stage in config.stages) and not (val.tar_data_sources or val.images_dir):
        hint = "Each student is judged on it; the test split is never used for that."
        yield Problem("the stages need held-out images", "dataset.val_dataset", hint)


def _misplaced(stages: list[Stage], place: int) -> tuple[str, str] | None:
    """Return why the stage at ``place`` cannot follow those before it, and a hint; None if it can."""
    stage, before = stages[place], stages[:place]
    quantized = [other.value for other in before if STAGES[other].quantizes]
    if STAGES[stage].needs_floats and quantized:
        return f"{quantized[0]} has quantized the student", f"Put {stage.value} before it, or leave it out."
    return STAGES[stage].misplaced(before)
