"""A model under measurement, and what it says in the spaces of teachers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol

from radioplat.evaluation.models.encoder import Encoder
from radioplat.models.features import KINDS, Features
from radioplat.models.student.fold_target_norm import fold_heads
from radioplat.models.student.student import Student


class Heads(Protocol):
    """What a model says in the spaces of teachers."""

    @property
    def names(self) -> list[str]:
        """The teachers."""
        ...

    @property
    def head_widths(self) -> Mapping[tuple[str, str], int]:
        """Width by teacher and kind (``summary``, ``spatial``)."""
        ...

    def head(self, name: str, features: Features) -> Features:
        """What an encoder gave, in the space of teacher ``name``; fp32."""
        ...


@dataclass(frozen=True)
class EvaluatedModel:
    """A model under measurement.

    Attributes:
        size: side of the view it sees, in pixels.
        heads: they are compared with the teachers; None for a teacher.
        resolution_of: the model of which this is another resolution. It takes part in what is measured at each
            resolution only: kNN, fidelity and agreement.
        where: the field it comes from.
    """

    encode: Encoder
    size: int
    heads: Heads | None
    resolution_of: str | None = None
    where: str = "evaluate.checkpoint"

    def has_head(self, teacher: str, kind: str) -> bool:
        """Whether it has a head for that."""
        return self.heads is not None and (teacher, kind) in self.heads.head_widths


class StudentHeads:
    """A student's own, in the precision of its weights."""

    def __init__(self, student: Student) -> None:
        fold_heads(student)
        self._student, self.names = student, student.head_names
        self._dtype = next(student.backbone.parameters()).dtype
        widths = {(h.name, k): getattr(h, f"{k}_dim") for h in student.architecture.heads for k in KINDS}
        self.head_widths: Mapping[tuple[str, str], int] = {key: w for key, w in widths.items() if w is not None}

    def head(self, name: str, features: Features) -> Features:
        """See :class:`Heads`; casting back what the encoder made fp32 loses nothing."""
        return self._student.head(name, features.map(lambda t: t.to(self._dtype))).map(lambda t: t.float())


class NamedHeads:
    """Those of a file, which has given them already: outputs ``<teacher>.<kind>``.

    Args:
        head_widths: width by teacher and kind.
    """

    def __init__(self, head_widths: Mapping[tuple[str, str], int]) -> None:
        self.head_widths = dict(head_widths)
        self.names = list(dict.fromkeys(name for name, _ in head_widths))

    def head(self, name: str, features: Features) -> Features:
        """See :class:`Heads`."""
        return Features(features.named.get(f"{name}.summary"), features.named.get(f"{name}.spatial"))
