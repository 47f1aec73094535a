"""Definition of a stage; :mod:`radioplat.tasks.compress.stages` has one for each."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from enum import Enum, auto
from pathlib import Path

from radioplat.errors import Problem
from radioplat.spec.schema.compress import Stage
from radioplat.spec.schema.root import Spec
from radioplat.tasks.compress.outcome import Outcome

Say = Callable[[str], None]


class Product(Enum):
    """The kind of result that a stage writes."""

    student = auto()
    onnx = auto()
    engine = auto()
    figures = auto()


@dataclass
class Inputs:
    """The results of the stages before.

    Attributes:
        latest: the last result of each kind; a student is a checkpoint folder.
        models: all that can be evaluated, by the name of the stage that wrote it: students, ONNX files, engines.
    """

    latest: dict[Product, Path] = field(default_factory=dict)
    models: dict[str, Path] = field(default_factory=dict)


@dataclass(frozen=True)
class StageDefinition:
    """One stage of a chain.

    Attributes:
        run: calls the stage's task with the stage's spec.
        section: the spec section in which a user may name the checkpoint that the task reads and its results folder.
        depends_on: spec sections that change the result; those about placement, caches and logs do not.
        product: the kind of result.
        reads: the kinds of earlier results that change this one, in the order in which they are hashed.
        overrides: of the user's spec, applied after ``compress.changes``.
        adapt: changes the spec further, before it is hashed.
        place: sets paths of earlier results, after the spec is hashed.
        problems: contradictions in the stage's spec.
        misplaced: given the stages before it, why the stage cannot follow them, and a hint; None if it can.
        milder: overrides for retry number 1, 2, ..., given the checkpoint of the first attempt; empty if
            there is no (further) milder setting. None for a stage that is not retried by itself.
        outputs: files that the spec names outside the stage's folder, by field.
        needs_floats: whether the stage cannot follow one that quantizes.
        quantizes: whether the stage adds quantizers to the student.
    """

    run: Callable[[Spec, Say], Outcome]
    section: str
    depends_on: tuple[str, ...]
    product: Product = Product.student
    reads: tuple[Product, ...] = (Product.student,)
    overrides: tuple[str, ...] = ()
    adapt: Callable[[Spec], None] = lambda spec: None
    place: Callable[[Spec, Inputs], None] = lambda spec, inputs: None
    problems: Callable[[Spec], Iterable[Problem]] = lambda spec: ()
    misplaced: Callable[[Sequence[Stage]], tuple[str, str] | None] = lambda before: None
    milder: Callable[[Spec, int, Path], list[str]] | None = None
    outputs: Callable[[Spec], dict[str, str | None]] = lambda spec: {}
    needs_floats: bool = False
    quantizes: bool = False

    @property
    def changes_student(self) -> bool:
        """Whether the stage writes a student."""
        return self.product is Product.student
