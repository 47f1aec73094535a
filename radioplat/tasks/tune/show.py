"""Results of a sweep: terminal output, picture, HTML page, and the spec of the best trial as a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from radioplat.common import terminal
from radioplat.common.redact import redact_yaml
from radioplat.spec.loading.load import to_yaml
from radioplat.spec.schema.train import Tracker
from radioplat.tasks.tune.pareto import choose, draw, front
from radioplat.tasks.tune.sweep import full_spec
from radioplat.tasks.tune.trial_record import State, TrialRecord
from radioplat.tasks.tune.tune import TuneReport
from radioplat.tracking.report.page import write_report
from radioplat.tracking.results import write_atomic
from radioplat.tracking.table import Table
from radioplat.tracking.weights_and_biases.artifacts import Product
from radioplat.tracking.weights_and_biases.session import WandbRun

PICTURE, BEST, PAGE = "pareto.png", "best.yaml", "report.html"


def show(report: TuneReport) -> None:
    """Print the table, and write picture, page and ``best.yaml``."""
    home, plan = report.plan.home, report.plan
    tables = tables_of(report)
    for table in tables:
        table.show()
    best = choose(report.trials, plan.space.modes)
    if best is None:
        terminal.say("no trial has finished yet")
        return
    picture = draw(report.trials, plan.space.modes, best)
    (home / PICTURE).write_bytes(picture)
    write_atomic(home / BEST, redact_yaml(to_yaml(full_spec(plan, best))))
    command = f"radioplat {plan.space.task.value} -e {home / BEST}"
    notes = [f"{report.seconds:.0f} s over all starts", f"{best.name} in full: {command}"]
    page = write_report(
        home / PAGE,
        title=f"Sweep {plan.name}",
        tables=tables,
        pictures=[("Objectives of the trials; blue: the Pareto front", picture)],
        spec_yaml=(home / BEST).read_text(),
        notes=notes,
    )
    _log_wandb(report, best, picture)
    terminal.say(f"picture: {home / PICTURE}")
    terminal.say(f"report: {page}")
    terminal.say(f"best: {best.name}; its student: {best.student}")
    terminal.say(f"in full: {command}")


def tables_of(report: TuneReport) -> list[Table]:
    """Return a table with a row for each trial, the Pareto front first."""
    plan = report.plan
    modes, paths = plan.space.modes, list(plan.space.parameters)
    best = front(report.trials, modes)
    rest = [record for record in report.trials if record not in best]
    with_money = any(record.money is not None for record in report.trials)
    short = _short(paths)
    columns = ["trial", *modes, *short, "seconds", *(["money"] if with_money else []), ""]
    rows = [_row(r, list(modes), paths, with_money, _word(r, best)) for r in (*best, *rest)]
    teachers = sum(record.teacher_seconds for record in report.trials)
    note = (
        "pareto: no other trial is as good in all objectives and better in one. "
        f"Teachers took {teachers:.1f} s for the training of all trials together."
    )
    return [Table(columns, rows, f"Sweep {plan.name}", note)]


def _row(record: TrialRecord, metrics: list[str], paths: list[str], with_money: bool, word: str) -> list[object]:
    values = [record.values.get(path) for path in paths]
    cells = [str(v) if isinstance(v, (list, dict, bool)) else v for v in values]
    money = [record.money] if with_money else []
    return [record.name, *(record.metrics.get(name) for name in metrics), *cells, record.seconds, *money, word]


def _word(record: TrialRecord, best: list[TrialRecord]) -> str:
    clones = f"weights of {', '.join(f'trial {n} at step {s}' for n, s in record.clones)}" if record.clones else ""
    state = {
        State.done: "; ".join([*(["pareto"] if record in best else []), *([record.reason] if record.reason else [])]),
        State.stopped: f"stopped at step {record.step} of {record.steps}",
        State.running: f"unfinished, step {record.step} of {record.steps}",
        State.failed: f"failed: {record.reason[:80]}",
    }[record.state]
    return "; ".join(word for word in (state, clones) if word)


def _short(paths: list[str]) -> list[str]:
    """Return the last part of each path; the whole path if two would be equal."""
    last = [path.rpartition(".")[2] for path in paths]
    return [path if last.count(word) > 1 else word for path, word in zip(paths, last, strict=True)]


def _log_wandb(report: TuneReport, best: TrialRecord, picture: bytes) -> None:
    """Log the sweep as a W&B run of its own, in the group of its trials' runs."""
    plan = report.plan
    if not plan.spec.tracked_by(Tracker.wandb):
        return
    config = replace(plan.spec.wandb, enable=True, group=plan.name, name="sweep")
    with WandbRun(config, plan.home, {"best": best.number, **best.values}, job_type="tune") as run:
        for record in report.done:
            run.log(record.number, {"trial": record.number, **record.metrics})
        run.picture("pareto", picture)
        run.used(Product(Path(best.student), "checkpoint"))
