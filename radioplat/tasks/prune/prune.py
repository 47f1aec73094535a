"""The task ``prune``: make a trained student or detector smaller; the result can be trained, evaluated and exported."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from radioplat.compression.cost import Cost
from radioplat.compression.pruning.prune import dry_run
from radioplat.compression.pruning.reconstruct import Reconstructed
from radioplat.compression.pruning.sparsify import Sparsified
from radioplat.errors import SpecError
from radioplat.models.model_kind import ModelKind
from radioplat.models.source import source_of
from radioplat.models.student.checkpoint import load_student, read_architecture
from radioplat.models.vision_model import VisionModel, model_kind
from radioplat.spec.checks.tasks.prune import prune_problems
from radioplat.spec.checks.tasks.prune_detector import detector_prune_problems
from radioplat.spec.loading.load import load_spec, to_yaml
from radioplat.spec.schema.root import Spec
from radioplat.tasks.prune.cut import Cut, check_something_stays, cut, has_budget
from radioplat.tasks.prune.rounds import PRUNED, REPORT, Round, prune_in_rounds
from radioplat.tasks.shared.find_checkpoint import find_checkpoint
from radioplat.tasks.shared.model_folder import keep_plan, write_model
from radioplat.tracking.results import TaskFolder
from radioplat.tracking.task_log import log_task
from radioplat.tracking.weights_and_biases.artifacts import Product
from radioplat.tracking.weights_and_biases.task_record import log_task_to_wandb


@dataclass(frozen=True)
class PruneReport:
    """Result of the task ``prune``.

    Attributes:
        path: a checkpoint folder, for ``radioplat.load_student`` (``load_detector`` for a detector) or a spec's
            ``pretrained_model_path``.
        checkpoint: the model that was pruned.
        amount: share of each layer's channels to remove, from the spec or found by the budget; 0 if none were removed.
        before, after: cost of the backbone; zeros count like other weights.
        sparse: the weights that were set to zero; None if none were to be.
        rounds: rounds of pruning and retraining, in order; empty without retraining.
        went: the smallest and the largest share of a layer's channels that was removed; empty if no channels were, or
            with retraining.
        batchnorm_images: number of images that BatchNorm's statistics were estimated from; 0 with retraining.
        heads_stay: attention layers that kept all heads, because they do not run with fewer.
        reconstructed: blocks whose last layers were fitted again, and those that could not be; empty with retraining.
        notes: see :class:`~radioplat.tasks.prune.cut.Cut`; with retraining of the first round.
    """

    path: Path
    checkpoint: Path
    amount: float
    before: Cost
    after: Cost
    sparse: Sparsified | None = None
    rounds: tuple[Round, ...] = ()
    went: tuple[float, ...] = ()
    batchnorm_images: int = 0
    heads_stay: tuple[str, ...] = ()
    reconstructed: tuple[Reconstructed, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def student(self) -> Path:
        """The pruned model: :attr:`path`."""
        return self.path


def prune(
    spec: str | Path | Mapping[str, Any] | Spec,
    overrides: Sequence[str] = (),
    say: Callable[[str], None] | None = None,
) -> PruneReport:
    """Prune ``prune.checkpoint``, by default the latest checkpoint; retrain it if the spec says so.

    Args:
        spec: a YAML file, a mapping of sections, or a :class:`~radioplat.spec.schema.root.Spec`; it is not changed.
        overrides: ``key=value``, applied to it in order.
        say: called with each message of the training; default: print to stderr.

    Returns:
        The pruned checkpoint at ``student``, and its cost before and after.

    Raises:
        SpecError: fields of ``prune`` contradict each other, or the backbone cannot be pruned this way.
        EngineError, WeightsError: there is no checkpoint, or it cannot be read.

    Example:
        >>> result = radioplat.prune("spec.yaml", ["prune.budget.macs=0.5"])
        >>> result.after.macs / result.before.macs
        0.4996
    """
    spec = load_spec(spec, overrides)
    if problems := list(prune_problems(spec)):
        raise SpecError(*problems)
    folder = TaskFolder(spec.results_dir, "prune", spec.prune.results_dir)
    report = log_task(folder, "prune", to_yaml(spec), lambda: _prune(spec, folder.path, say), _kpi)
    made = Product(report.path, "checkpoint", [report.checkpoint])
    log_task_to_wandb(spec, folder.path, "prune", figures=_kpi(report), made=made)
    return report


def pruned_checkpoint(spec: Spec, *, dry: bool = False) -> Path:
    """Return the checkpoint of a student or detector that ``prune`` can prune as the spec says.

    Args:
        dry: prune it with random weights also where pruning itself fails as early.

    Raises:
        RadioplatError: as :func:`prune`.
    """
    config = spec.prune
    if problems := list(prune_problems(spec)):
        raise SpecError(*problems)
    checkpoint = find_checkpoint(spec, config.checkpoint, "prune.checkpoint").resolve()
    if model_kind(checkpoint) is ModelKind.detector:
        if problems := list(detector_prune_problems(config)):
            raise SpecError(*problems)
    elif dry or config.retrain.wanted or config.blocks or config.score.needs_gradients:
        cuts = dry_run(read_architecture(checkpoint, "prune.checkpoint"), config)
        if cuts and config.cut and not has_budget(config) and not config.retrain.wanted:
            check_something_stays(config, cuts)
    return checkpoint


def _prune(spec: Spec, folder: Path, say: Callable[[str], None] | None) -> PruneReport:
    config, target, checkpoint = spec.prune, folder / PRUNED, pruned_checkpoint(spec)
    if config.retrain.wanted:
        # A rerun continues with the student that the first start used.
        plan = keep_plan(folder, {"checkpoint": str(checkpoint), "section": asdict(config)}, "prune")
        checkpoint = Path(plan["checkpoint"])
        rounds = tuple(prune_in_rounds(spec, checkpoint, folder, say))
        last = rounds[-1]
        amount = 1 - math.prod(1 - each.amount for each in rounds)
        report = PruneReport(
            target,
            checkpoint,
            amount,
            rounds[0].before,
            last.after,
            last.sparse,
            rounds,
            heads_stay=last.heads_stay,
            notes=rounds[0].notes,
        )
        small: VisionModel = load_student(last.checkpoint)
        source = source_of(last.checkpoint)
    else:
        done, source = cut(spec, config, checkpoint, folder), source_of(checkpoint)
        small, amount = done.student, done.config.amount if config.cut else 0.0
        report = PruneReport(
            target,
            checkpoint,
            amount,
            done.before,
            done.after,
            done.sparse,
            went=_went(done),
            batchnorm_images=done.batchnorm_images,
            heads_stay=tuple(done.cuts.heads_stay if done.cuts else ()),
            reconstructed=done.reconstructed,
            notes=done.notes,
        )
    write_model(small, target, REPORT, asdict(report), [source])
    return report


def _went(done: Cut) -> tuple[float, ...]:
    if not done.cuts or not done.cuts.units:
        return ()
    shares = [len(removed) / size for removed, size in zip(done.cuts.units, done.cuts.sizes.values(), strict=True)]
    return min(shares), max(shares)


def _kpi(report: PruneReport) -> dict[str, float]:
    before, after = report.before, report.after
    zeros = {"zeros": report.sparse.zeros / report.sparse.weights} if report.sparse else {}
    return zeros | {"params_kept": after.params / before.params, "macs_kept": after.macs / before.macs}
