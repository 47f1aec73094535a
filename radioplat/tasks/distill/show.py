"""Terminal output of ``distill`` and ``train``."""

from __future__ import annotations

from radioplat.common import terminal
from radioplat.launch.driver import RunResult
from radioplat.tasks.distill.distill import DistillResult


def show(result: RunResult) -> None:
    """Print the costs of the teachers, the checkpoint, and the results of the tasks in ``distill.then``."""
    tables = [result.teacher_costs.table()] if result.teacher_costs is not None else []
    for table in tables + (result.account.tables() if result.account else []):
        table.show(with_note=False)
    for name, each in (result.students or {"": result}).items():
        terminal.say(f"{name}{': ' if name else ''}{each.checkpoint} at step {each.global_step}")
    if isinstance(result, DistillResult):
        written = {
            "evaluate": result.evaluation and result.evaluation.report,
            "export": result.exported and result.exported.path,
            "gen_trt_engine": result.engine and result.engine.path,
        }
        for name, path in written.items():
            if path:
                terminal.say(f"{name}: {path}")
