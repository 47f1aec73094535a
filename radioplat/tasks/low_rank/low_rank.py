"""The task ``low_rank``: replace layers of a trained student by products of narrower ones; writes a checkpoint."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from radioplat.compression.cost import Cost, cost_of
from radioplat.compression.low_rank import Decomposed, decompose
from radioplat.errors import SpecError
from radioplat.models.source import source_of
from radioplat.models.student.checkpoint import load_student
from radioplat.spec.checks.tasks.low_rank import low_rank_problems
from radioplat.spec.loading.load import load_spec, to_yaml
from radioplat.spec.schema.root import Spec
from radioplat.tasks.distill.retrain import retrain
from radioplat.tasks.shared.find_checkpoint import find_checkpoint
from radioplat.tasks.shared.model_folder import keep_plan, write_model
from radioplat.tracking.results import TaskFolder
from radioplat.tracking.task_log import log_task
from radioplat.tracking.weights_and_biases.artifacts import Product
from radioplat.tracking.weights_and_biases.task_record import log_task_to_wandb

MODEL, START, REPORT = "model_low_rank", "model_decomposed", "low_rank.json"


@dataclass(frozen=True)
class LowRankReport:
    """Result of the task ``low_rank``.

    Attributes:
        path: a checkpoint folder; with retraining, of the retrained student.
        checkpoint: the student before.
        before, after: cost of the backbone.
        layers: the decomposed layers.
    """

    path: Path
    checkpoint: Path
    before: Cost
    after: Cost
    layers: Decomposed

    @property
    def student(self) -> Path:
        """The checkpoint folder, ``path``."""
        return self.path


def low_rank(
    spec: str | Path | Mapping[str, Any] | Spec,
    overrides: Sequence[str] = (),
    *,
    say: Callable[[str], None] | None = None,
) -> LowRankReport:
    """Decompose ``low_rank.checkpoint``, by default the latest student; retrain it if the spec says so.

    Args:
        spec: a YAML file, a mapping of sections, or a :class:`~radioplat.spec.schema.root.Spec`; it is not changed.
        overrides: ``key=value``, applied to it in order.
        say: called with each message of a retraining.

    Returns:
        The decomposed (and retrained) checkpoint at ``student``, its layers, and the cost before and after.

    Raises:
        SpecError: fields of ``low_rank`` contradict each other, or nothing would get smaller.
        EngineError, WeightsError: there is no checkpoint, or it cannot be read.

    Example:
        >>> result = radioplat.low_rank("spec.yaml", ["low_rank.energy=0.9"])
        >>> result.student
        PosixPath('results/low_rank/model_low_rank')
    """
    spec = load_spec(spec, overrides)
    if problems := list(low_rank_problems(spec)):
        raise SpecError(*problems)
    folder = TaskFolder(spec.results_dir, "low_rank", spec.low_rank.results_dir)
    report = log_task(folder, "low_rank", to_yaml(spec), lambda: _low_rank(spec, folder.path, say), _kpi)
    made = Product(report.path, "checkpoint", [report.checkpoint])
    log_task_to_wandb(spec, folder.path, "low_rank", figures=_kpi(report), made=made)
    return report


def _low_rank(spec: Spec, folder: Path, say: Callable[[str], None] | None) -> LowRankReport:
    config = spec.low_rank
    path = find_checkpoint(spec, config.checkpoint, "low_rank.checkpoint").resolve()
    if config.retrain.wanted:
        # A rerun continues with the student that the first start decomposed.
        path = Path(keep_plan(folder, {"checkpoint": str(path), "section": asdict(config)}, "low_rank")["checkpoint"])
    student, source = load_student(path, "low_rank.checkpoint"), source_of(path)
    small, layers = decompose(student, config)
    size = small.architecture.img_size
    costs = cost_of(student.backbone, size), cost_of(small.backbone, size)
    report = LowRankReport(folder / MODEL, path, *costs, layers)
    if config.retrain.wanted:
        start = folder / START
        if not start.exists():
            write_model(small, start, REPORT, asdict(report), [source])
        trained = retrain(spec, config.retrain, start, folder / "retrain", say)
        small, source = load_student(trained), source_of(trained)
    write_model(small, report.path, REPORT, asdict(report), [source])
    return report


def _kpi(report: LowRankReport) -> dict[str, float]:
    before, after = report.before, report.after
    return {"params_kept": after.params / before.params, "macs_kept": after.macs / before.macs}
