"""The training state in a checkpoint's ``state.json``, and checks of its schema and fields."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from radioplat import __version__
from radioplat.common.unknown_fields import unknown_fields
from radioplat.data.ledger.lineage import Reached
from radioplat.tracking.teacher_cost import TeacherCost

SCHEMA = 1
STATE = "state.json"
# By schema: a function that returns the content of a state.json in the next schema. A checkpoint is never rewritten.
UPGRADES: dict[int, Callable[[dict[str, Any]], dict[str, Any]]] = {}


@dataclass
class RunState:
    """Training progress of a run.

    Attributes:
        global_step: completed optimizer steps.
        samples_consumed: samples consumed so far; with the sample order this is the complete state of the data loader.
        order_hash: hash of the sample order, computed from the fields in ``order_fields``.
        order_from: the step at which this order, and the ledger in the same folder, began: not 0 after
            ``train.restart_order`` and after a resume from another run's checkpoint.
        starts: the attempts that led here, each with its first step, in order; empty if the run began with a version
            that did not record them.
        optimizer_steps: weight updates; less than ``global_step`` if non-finite steps were skipped.
        recent_losses, rollbacks: state of :class:`radioplat.training.guards.loss_spikes.SpikeGuard`.
        micro_batch_seconds: what micro-batches cost, by the sizes of their views, as measured.
        teacher_cost: fields of ``TeacherCost`` by teacher, summed since the first start.
    """

    global_step: int = 0
    epoch: int = 0
    samples_consumed: int = 0
    optimizer_steps: int = 0
    world_size: int = 1
    attempt: int = 1
    order_hash: str = ""
    order_fields: dict[str, str] = field(default_factory=dict)
    order_from: int = 0
    starts: list[list[int]] = field(default_factory=list)
    quarantined: list[str] = field(default_factory=list)
    teacher_cost: dict[str, dict[str, float]] = field(default_factory=dict)
    recent_losses: list[float] = field(default_factory=list)
    rollbacks: int = 0
    micro_batch_seconds: dict[str, float] = field(default_factory=dict)
    schema: int = SCHEMA

    @property
    def reached(self) -> Reached:
        """The steps and attempts that the ledger must have."""
        return Reached(self.global_step, self.attempt, tuple((number, first) for number, first in self.starts))

    def begin(self, attempt: int) -> None:
        """Go on with these steps as another attempt; nothing changes if it is the one that wrote them."""
        if self.starts and self.attempt == attempt:
            return
        known = self.starts or self.global_step == self.order_from
        before = [start for start in self.starts if start[1] < self.global_step]
        self.starts = [*before, [attempt, self.global_step]] if known else []
        self.attempt = attempt


def current_state(state: Any) -> Any:
    """Return the content of a ``state.json`` in this version's schema if it is of an older one; else unchanged."""
    while isinstance(state, dict) and type(state.get("schema")) is int and state["schema"] in UPGRADES:
        state = UPGRADES[state["schema"]](state) | {"schema": state["schema"] + 1}
    return state


def foreign_schema(state: Any) -> str:
    """Return why this version cannot read the schema of a ``state.json``; empty if it can."""
    if not isinstance(state, dict) or state.get("schema") is None:
        return f"{STATE} names no schema, radioplat {__version__} reads schema {SCHEMA}"
    theirs = state["schema"]
    return "" if theirs == SCHEMA else f"{STATE} has schema {theirs}, radioplat {__version__} reads schema {SCHEMA}"


def unknown_in_state(state: dict[str, Any]) -> list[str]:
    """Return the problems of a ``state.json`` of this version's schema: unknown fields, missing step; [] if none."""
    names = unknown_fields(state, RunState)
    costs = state.get("teacher_cost")
    costs = costs if isinstance(costs, dict) else {}
    names += [name for t, cost in costs.items() for name in unknown_fields(cost, TeacherCost, f"teacher_cost.{t}.")]
    missing = [] if step_in(state) is not None else [f"{STATE} has no global_step that is a number"]
    return [f"{STATE} has the unknown field {name}" for name in names] + missing


def step_in(state: Any) -> int | None:
    """Return the global step in a ``state.json`` of any version; None if it has none."""
    step = state.get("global_step") if isinstance(state, dict) else None
    return step if isinstance(step, int) and not isinstance(step, bool) and step >= 0 else None
