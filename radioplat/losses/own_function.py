"""A user's own function as a loss, by its import path."""

from __future__ import annotations

from collections.abc import Iterator

import torch

from radioplat.common.imports import import_object
from radioplat.errors import Problem, SpecError, problems_of
from radioplat.losses.base.criterion import Pair
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.spec.resolved.terms import Term
from radioplat.spec.schema.distill import LossType


def own_function(loss: LossType, where: str) -> Pair:
    """Import the function that ``loss_type: my_package.my_module:my_loss`` names.

    The function takes the student's and the teacher's features, fp32 ``[..., D]``, and returns a value for each vector,
    ``[...]``. Features without weight are zeros on both sides, so value and gradient must be finite there.

    Raises:
        SpecError: it cannot be imported, or called.
    """
    function = import_object(loss.value, where)
    if not callable(function) or isinstance(function, type):
        raise SpecError(f"{loss.value} is no function", where=where, hint="Name a function of two tensors.")
    return function


def own_function_problems(teacher: ResolvedTeacher, widths: dict[str, int]) -> Iterator[Problem]:
    """Yield problems of the user's functions that compare this teacher's features, found by calling them on zeros.

    Args:
        widths: of the teacher's features, by kind.
    """
    for bound in teacher.bindings:
        if bound.loss.is_own:
            yield from problems_of(own_function, bound.loss, f"{bound.where}.criterion")
    for term in teacher.terms:
        if term.loss.is_own and widths[term.kind]:  # else the teacher has no such features, which other checks report
            yield from problems_of(_try, term, widths[term.kind])


def _try(term: Term, width: int) -> None:
    function = own_function(term.loss, term.field)
    shape = (2, 3, 4) if term.kind == "spatial" else (2,)
    student = torch.zeros(*shape, width, requires_grad=True)
    hint = "It takes two tensors [..., D] and returns one finite value for each vector, [...]."
    try:
        values = function(student, torch.zeros(*shape, width))
    except Exception as error:  # whatever a user's function raises
        message = f"{term.loss.value} failed on features {[*student.shape]}: {type(error).__name__}: {error}"
        raise SpecError(message, where=term.field, hint=hint) from None
    if not isinstance(values, torch.Tensor) or values.shape != shape or not values.requires_grad:
        output = [*values.shape] if isinstance(values, torch.Tensor) else type(values).__name__
        message = (
            f"{term.loss.value} made {output} of features {[*student.shape]}, or nothing that can be differentiated"
        )
        raise SpecError(message, where=term.field, hint=hint)
    (gradient,) = torch.autograd.grad(values.sum(), student, allow_unused=True)
    if gradient is None or not (values.isfinite().all() and gradient.isfinite().all()):
        message = f"{term.loss.value} has no finite value and gradient where both sides are zeros"
        raise SpecError(message, where=term.field, hint=hint)
