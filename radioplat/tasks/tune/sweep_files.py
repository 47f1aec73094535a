"""Files of a sweep: ``report.html``, ``pareto.png``, and ``best.yaml``, the whole spec of the chosen trial."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from radioplat.common.redact import redact_yaml
from radioplat.spec.loading.load import to_yaml
from radioplat.spec.schema.train import Tracker
from radioplat.tasks.tune.pareto import choose, draw, front
from radioplat.tasks.tune.sweep import Plan, full_spec
from radioplat.tasks.tune.trial_record import State, TrialRecord
from radioplat.tracking.report.page import write_report
from radioplat.tracking.results import write_atomic
from radioplat.tracking.table import Table
from radioplat.tracking.weights_and_biases.artifacts import Product
from radioplat.tracking.weights_and_biases.session import WandbRun

PICTURE, BEST, PAGE = "pareto.png", "best.yaml", "report.html"


def write_files(plan: Plan, trials: Sequence[TrialRecord], seconds: float, *, log: bool) -> TrialRecord | None:
    """Write the files into ``plan.home``; return the trial whose spec is ``best.yaml``, None if none is finished.

    Args:
        seconds: over all starts of the sweep.
        log: log them to W&B too, if the spec asks for it.
    """
    home, best = plan.home, choose(trials, plan.space.modes)
    if best is None:
        return None
    picture = draw(trials, plan.space.modes, best)
    (home / PICTURE).write_bytes(picture)
    write_atomic(home / BEST, redact_yaml(to_yaml(full_spec(plan, best))))
    write_report(
        home / PAGE,
        title=f"Sweep {plan.name}",
        tables=tables_of(plan, trials),
        pictures=[("Objectives of the trials; blue: the Pareto front", picture)],
        spec_yaml=(home / BEST).read_text(),
        notes=[f"{seconds:.0f} s over all starts", f"{best.name} in full: {command_of(plan)}"],
    )
    if log and plan.spec.tracked_by(Tracker.wandb):
        _log_wandb(plan, trials, best, picture)
    return best


def command_of(plan: Plan) -> str:
    """Return the command that runs ``best.yaml``."""
    return f"radioplat {plan.space.task.value} -e {plan.home / BEST}"


def tables_of(plan: Plan, trials: Sequence[TrialRecord]) -> list[Table]:
    """Return a table with a row for each trial, the Pareto front first."""
    modes, paths = plan.space.modes, list(plan.space.parameters)
    best = front(trials, modes)
    rest = [record for record in trials if record not in best]
    with_money = any(record.money is not None for record in trials)
    short = _short(paths)
    columns = ["trial", *modes, *short, "seconds", *(["money"] if with_money else []), ""]
    rows = [_row(r, list(modes), paths, with_money, _word(r, best)) for r in (*best, *rest)]
    teachers = sum(record.teacher_seconds for record in trials)
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


def _log_wandb(plan: Plan, trials: Sequence[TrialRecord], best: TrialRecord, picture: bytes) -> None:
    """Log the sweep as a W&B run of its own, in the group of its trials' runs."""
    config = replace(plan.spec.wandb, enable=True, group=plan.name, name="sweep")
    with WandbRun(config, plan.home, {"best": best.number, **best.values}, job_type="tune") as run:
        for record in trials:
            if record.state is not State.done:
                continue
            run.log(record.number, {"trial": record.number, **record.metrics})
        run.picture("pareto", picture)
        run.used(Product(Path(best.student), "checkpoint"))
