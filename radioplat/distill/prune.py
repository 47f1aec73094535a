"""The task ``prune``: a trained student made smaller, as a checkpoint that trains on, is evaluated and exported."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

import torch

from radioplat.compress.budget import within_budget
from radioplat.compress.cost import Cost, cost_of
from radioplat.compress.prune import prune_student
from radioplat.compress.scores import ChannelScore
from radioplat.compress.sparsify import Sparsified, sparsify
from radioplat.distill.model_folder import write_model
from radioplat.distill.prepare import Run, keep_data, prepare
from radioplat.distill.score_pass import first_batches, score_student
from radioplat.errors import SpecError
from radioplat.export.run import find_checkpoint
from radioplat.models.checkpoint import load_student
from radioplat.models.student import Student
from radioplat.spec.check_prune import prune_problems
from radioplat.spec.load import load_spec, to_yaml
from radioplat.spec.prune import PruneConfig
from radioplat.spec.root import Spec
from radioplat.track.diary import keep_diary
from radioplat.track.results import TaskFolder

MODEL, REPORT = "model_pruned", "prune.json"


@dataclass(frozen=True)
class PruneReport:
    """What pruning left.

    Attributes:
        path: a checkpoint folder; ``radioplat.load_student`` opens it, and a spec's ``pretrained_model_path`` names it.
        amount: as asked, or as the budget found it.
        before, after: what the backbone takes; zeros count like any number.
        sparse: which weights are zero, where that was asked for.
    """

    path: Path
    checkpoint: Path
    amount: float
    before: Cost
    after: Cost
    sparse: Sparsified | None = None


def prune(spec: Spec | dict | str | Path, overrides: Sequence[str] = ()) -> PruneReport:
    """Prune ``prune.checkpoint``, by default the latest student there is.

    Raises:
        SpecError: fields of ``prune`` contradict each other, or the backbone cannot be pruned so.
        EngineError, WeightsError: there is no checkpoint, or it cannot be read.
    """
    spec = load_spec(spec, overrides)
    if problems := list(prune_problems(spec)):
        raise SpecError(*problems)
    folder = TaskFolder(spec.results_dir, "prune", spec.prune.results_dir)
    return keep_diary(folder, "prune", to_yaml(spec), lambda: _prune(spec, folder), _kpi)


def _prune(spec: Spec, folder: TaskFolder) -> PruneReport:
    asked = spec.prune
    path = find_checkpoint(spec, asked.checkpoint, "prune.checkpoint").resolve()
    student, score = load_student(path, "prune.checkpoint"), ChannelScore(asked, spec.train.seed)
    images = None
    if asked.blocks or score.needs_gradients:
        run = _run(spec, student, folder)
    if asked.blocks:
        shown = (b.views[run.student_view].pixels for b in first_batches(run, asked.score_batches))
        images = torch.cat([torch.tensor(pixels) for pixels in shown])
    if score.needs_gradients:
        score_student(run, student, path, score, asked.score_batches)
    timed = asked.budget.latency is not None
    before = cost_of(student.backbone, student.architecture.img_size, timed)

    def smaller(config: PruneConfig) -> Student:
        """A pruned copy."""
        return prune_student(student, config, score, images)

    budget = asked.budget
    if any(share is not None for share in (budget.params, budget.macs, budget.latency)):
        small, asked = within_budget(student, asked, smaller)
    else:
        small = smaller(asked) if asked.cut or asked.blocks else student
    sparse = None
    if asked.sparsity.type is not None:
        small, sparse = sparsify(small, asked.sparsity)
    after = cost_of(small.backbone, small.architecture.img_size, timed)
    report = PruneReport(folder.path / MODEL, path, asked.amount if asked.cut else 0.0, before, after, sparse)
    write_model(small, report.path, REPORT, asdict(report))
    return report


def _run(spec: Spec, student: Student, folder: TaskFolder) -> Run:
    """The run that taught ``student``: by teachers where it has heads for any, else by labels."""
    run, data = prepare(spec, "distill" if student.head_names else "train", folder.path)
    keep_data(run, data)
    return run


def _kpi(report: PruneReport) -> dict[str, float]:
    before, after = report.before, report.after
    zeros = {"zeros": report.sparse.zeros / report.sparse.weights} if report.sparse else {}
    return zeros | {"params_kept": after.params / before.params, "macs_kept": after.macs / before.macs}
