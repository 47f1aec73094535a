"""Terminal output of ``plan``."""

from __future__ import annotations

from radioplat.common import terminal
from radioplat.errors import SpecError
from radioplat.tasks.plan.findings import Plan


def show(plan: Plan) -> bool:
    """Print a plan, its problems first; return whether the task can start."""
    if plan.problems:
        terminal.show_error(SpecError(*plan.problems))
    if plan.models:
        terminal.show_table(
            "models",
            ["name", "role", "parameters", "memory", "where", ""],
            [
                [m.name, m.role, f"{m.parameters / 1e6:.2f} M", terminal.size(m.memory), m.placement, m.detail]
                for m in plan.models
            ],
            note="memory of weights, gradients and optimizer of one replica; activations come on top",
        )
    if plan.sources:
        terminal.show_table(
            "sources",
            ["folder", "images", "kept", "share", "samples an epoch", "rejected"],
            [
                [
                    s.path,
                    str(s.images),
                    str(s.kept),
                    f"{s.share:.2%}",
                    str(s.samples_per_epoch),
                    ", ".join(f"{n} {r}" for r, n in s.rejected.items()) or "none",
                ]
                for s in plan.sources
            ],
        )
    if plan.tasks:
        words = {True: "yes", False: "no", None: "not tried"}
        rows = [[line.task, words[line.accepted], line.detail] for line in plan.tasks]
        terminal.show_table("tasks that accept the student", ["task", "", ""], rows)
    for name, fact in plan.facts.items():
        terminal.say(f"{name}: {fact}")
    for warning in plan.warnings:
        terminal.say(f"warning: {warning}")
    if count := len(plan.problems):
        terminal.note(f"this run cannot start: {count} problem{'s' * (count > 1)}, printed above the tables")
    else:
        terminal.say("this run can start")
    return plan.can_start
