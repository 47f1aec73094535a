"""The loss terms of a teacher: those of its ``mode``, its ``extra_losses``, and bindings between modules."""

from __future__ import annotations

from dataclasses import dataclass

from radioplat.spec.resolved.losses import default_losses, definition_of, loss_named
from radioplat.spec.schema.distill import BindingConfig, BindingForm, DistillConfig, Kind, LossType, Mode, TeacherConfig

EXTRA = ".extra_losses["  # in the paths of its entries


@dataclass(frozen=True)
class Term:
    """One loss term of a teacher.

    Attributes:
        kind: summary, spatial or logits.
        weight: factor of the term in the teacher's loss.
        where: path of the spec field that it comes from.
        extra: True for a second loss of its kind: an entry of ``extra_losses``, or the second of the default's two.
        focal: weight, gamma and maximum of the weights of positions, for losses that compare maps by position.
    """

    kind: str
    loss: LossType
    weight: float
    where: str = ""
    extra: bool = False
    focal: tuple[float, float, float] | None = None

    @property
    def name(self) -> str:
        """Last part of the metric ``loss/<teacher>/<name>``: the kind; for a second loss kind and loss."""
        return f"{self.kind}_{self.loss.value.rpartition(':')[2]}" if self.extra else self.kind

    @property
    def field(self) -> str:
        """Path of the spec field that names the loss."""
        return f"{self.where}.type" if EXTRA in self.where else self.where


# Outputs of a detector with one row per query.
QUERY_MODULES = ("queries", "pred_logits", "pred_boxes")
# The encoder's proposals that become queries: their features, class scores and boxes.
PROPOSAL_MODULES = ("proposal_queries", "proposal_logits", "proposal_boxes")
MODULE = "module:"  # prefix of module names among the outputs requested of a teacher
COARSER = "spatial:"  # prefix of "ROWSxCOLUMNS": its map averaged down to another grid than that of the request


def coarser_map(grid: tuple[int, int]) -> str:
    """Return the name, among the outputs requested of a teacher, of its map averaged down to ``grid``."""
    return f"{COARSER}{grid[0]}x{grid[1]}"


def grid_of(name: str) -> tuple[int, int]:
    """Return the grid of a name from :func:`coarser_map`."""
    rows, columns = name.removeprefix(COARSER).split("x")
    return int(rows), int(columns)


@dataclass(frozen=True)
class Bound:
    """A loss between the outputs of a teacher module and a student module.

    Attributes:
        name: ``binding_0``: name of the term, and of the student's projection if the widths differ.
        where: its field path, ``distill.bindings[0]``.
        context_modules: further modules of the teacher whose outputs the comparison needs.
        as_tao: detectors are compared as by TAO.
    """

    name: str
    where: str
    teacher_module: str
    student_module: str
    loss: LossType
    weight: float
    context_modules: tuple[str, ...] = ()
    as_tao: bool = False

    @property
    def teacher_modules(self) -> tuple[str, ...]:
        """All modules of the teacher whose outputs it needs."""
        return (self.teacher_module, *self.context_modules)

    @property
    def key(self) -> str:
        """Name of the compared output among those requested of the teacher."""
        return MODULE + self.teacher_module


def bindings_of(distill: DistillConfig, teacher: str, detection: bool) -> tuple[Bound, ...]:
    """Return the bindings of the teacher with this name.

    Args:
        detection: the teacher is a detector.
    """
    alone = len(distill.teacher) == 1
    as_tao = detection and distill.binding_form is BindingForm.tao
    return tuple(
        Bound(
            f"binding_{i}",
            f"distill.bindings[{i}]",
            binding.teacher_module_name,
            binding.student_module_name,
            binding.criterion,
            binding.weight,
            _context_modules(binding, as_tao) if detection else (),
            as_tao,
        )
        for i, binding in enumerate(distill.bindings)
        if binding.teacher == teacher or (binding.teacher is None and alone)
    )


def _context_modules(binding: BindingConfig, as_tao: bool) -> tuple[str, ...]:
    if definition_of(binding.criterion).object_mask:
        return PROPOSAL_MODULES if as_tao else ("memory.0", *QUERY_MODULES)
    return QUERY_MODULES if binding.teacher_module_name in QUERY_MODULES and not as_tao else ()


def terms_of(
    teacher: TeacherConfig, loss: LossType | None, mode: Mode, where: str, batch_size: int
) -> tuple[Term, ...]:
    """Return the loss terms of a teacher.

    Args:
        loss, mode: of the teacher, or inherited from ``distill``; mode is not ``auto``, and no loss is the default.
        where: its field path, ``distill.teacher[0]``.
        batch_size: images of a micro-batch.
    """
    focal = (teacher.spatial_focal_weight, teacher.spatial_focal_gamma, teacher.spatial_focal_max_weight)
    terms: list[Term] = []
    if mode in (Mode.summary, Mode.logits):
        terms += _terms(mode.value, loss, 1.0, f"{where}.loss_type", batch_size)
    if mode is Mode.combo:
        summary = None if teacher.summary_loss_type is None else loss_named(teacher.summary_loss_type.value)
        terms += _terms("summary", summary, teacher.summary_loss_weight, f"{where}.summary_loss_type", batch_size)
    if mode in (Mode.spatial, Mode.combo):
        field, chosen = "loss_type", teacher.spatial_loss_type
        if chosen is not None:
            field, loss = "spatial_loss_type", loss_named(chosen.value)
        weight = teacher.fd_loss_weight if mode is Mode.combo else 1.0
        terms += _terms("spatial", loss, weight, f"{where}.{field}", batch_size, focal)
    for i, extra in enumerate(teacher.extra_losses):
        kind, at = extra.kind.value, f"{where}{EXTRA}{i}]"
        terms.append(Term(kind, extra.type, extra.weight, at, True, focal if kind == "spatial" else None))
    return tuple(terms)


def _terms(
    kind: str,
    loss: LossType | None,
    weight: float,
    where: str,
    batch_size: int,
    focal: tuple[float, float, float] | None = None,
) -> list[Term]:
    """Return the term of ``loss``, or those of the default that a micro-batch is large enough for."""
    if loss is not None:
        return [Term(kind, loss, weight, where, focal=focal)]
    return [
        Term(kind, each, weight, where, extra=second > 0, focal=focal)
        for second, each in enumerate(default_losses(Kind(kind)))
        if kind == Kind.spatial or batch_size >= definition_of(each).least_images
    ]
