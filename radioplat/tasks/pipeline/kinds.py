"""The tasks that a node may be; a new one is a value of :class:`NodeTask` and an entry in :data:`TASKS`."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from enum import Enum
from pathlib import Path
from typing import Any

from radioplat.errors import Problem, problems_of
from radioplat.spec.checks.tasks.training_run import check
from radioplat.spec.schema.compress import Stage
from radioplat.spec.schema.root import Spec
from radioplat.tasks.compress.compress import checked_groups, compress
from radioplat.tasks.compress.definition import Product, Say, StageDefinition
from radioplat.tasks.compress.outcome import Outcome, student_outcome
from radioplat.tasks.compress.stages import STAGES
from radioplat.tasks.distill.distill import distill, train


class NodeTask(str, Enum):
    """The task of a node, as the command of this name runs it."""

    distill = "distill"
    train = "train"
    prune = "prune"
    low_rank = "low_rank"
    quantize = "quantize"
    compress = "compress"
    evaluate = "evaluate"
    export = "export"
    gen_trt_engine = "gen_trt_engine"


def _training(run: Callable[..., Any], task: str) -> StageDefinition:
    def run_it(spec: Spec, say: Say) -> Outcome:
        """Train; return the checkpoint, of several students that of the first and all of them by name."""
        result = run(spec, say=say, progress=True)
        students = {name: str(each.checkpoint.resolve()) for name, each in result.students.items()}
        facts = {"steps": result.global_step} | ({STUDENTS: students} if students else {})
        return student_outcome(result.checkpoint.resolve(), facts)

    return replace(STAGES[Stage.distill], run=run_it, problems=lambda spec: check(spec, task))


def _run_compress(spec: Spec, say: Say) -> Outcome:
    report = compress(spec, say=say)
    facts = {"stages": [entry.name for entry in report.entries]}
    return student_outcome(report.student.resolve(), facts)


def _compress_problems(spec: Spec) -> Iterator[Problem]:
    yield from problems_of(checked_groups, spec)


_COMPRESSED = ("prune", "low_rank", "quantize", "evaluate", "export", "gen_trt_engine", "compress")
TASKS: dict[NodeTask, StageDefinition] = {
    NodeTask.distill: _training(distill, "distill"),
    NodeTask.train: _training(train, "train"),
    NodeTask.prune: STAGES[Stage.prune],
    NodeTask.low_rank: STAGES[Stage.low_rank],
    NodeTask.quantize: STAGES[Stage.quantize],
    NodeTask.compress: StageDefinition(
        run=_run_compress,
        section="compress",
        depends_on=(*STAGES[Stage.distill].depends_on, *_COMPRESSED),
        problems=_compress_problems,
    ),
    NodeTask.evaluate: STAGES[Stage.evaluate],
    NodeTask.export: STAGES[Stage.export],
    NodeTask.gen_trt_engine: STAGES[Stage.engine],
}
PRODUCTS = {Product.student: "student", Product.onnx: "onnx", Product.engine: "engine"}


STUDENTS = "students"  # fact of a distillation of several students: their checkpoints by name


def results_of(name: str, outcome: Outcome) -> dict[str, Path]:
    """Return the paths of a node's results by :func:`~radioplat.tasks.pipeline.dag.key_of`."""
    several = {f"{name}.{STUDENTS}.{each}": Path(path) for each, path in outcome.facts.get(STUDENTS, {}).items()}
    return {name: Path(outcome.path), **several}


def product_of(task: NodeTask) -> str | None:
    """Return the word by which other nodes refer to the result of a task; None if they cannot use it."""
    return PRODUCTS.get(TASKS[task].product)
