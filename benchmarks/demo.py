"""Kills, students, one hash: a run that loses processes all the time beside one that is left alone.

``python -m benchmarks.demo [--kills 40] [--seconds 360] [--students 4] [--seed 0] [--steps N] [--folder DIR]``; the
command ``radioplat demo`` is the same. The students learn from one pass of two real teachers, with
``train.reduction: exact``: first in one process, then on up to three raylets of this machine, with Ray Data and the
teachers as actors (DeepSpeed, ZeRO stage 1). `benchmarks.judges.killer`, which knows processes by ``ps`` alone, kills
workers, teachers, readers and raylets; a raylet that was killed is replaced after some seconds, so that the number of
workers changes. Then `benchmarks.judges.ledger` counts the samples, ``sha256`` the weights, and the judge's kNN and
OpenVINO measure the students. The same command goes on where an earlier one was interrupted; the folder keeps its
options.

The folder gets ``demo.html``, ``demo.png`` and ``demo.svg``, a recording of the terminal. The last line on stdout is
one JSON object: ``hashes_equal`` (share of the students whose file of weights has the SHA-256 of the run that was left
alone), ``blows`` (kills), ``missing`` and ``repeated`` (samples, of all students' ledgers),
``teacher_forwards_per_sample`` (new answers of a teacher over samples), ``teacher_forwards_again`` (forwards of images
that it had answered before, over samples),
``goodput`` (useful share of the wall time of the run with kills), ``seconds`` (of the command, over all its starts).
The exit status is 1 if a hash differs, a sample is missing or was used twice, a kill was not survived, or fewer came
than were asked for.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import shlex
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from rich.console import Group
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from benchmarks.demonstration import worth
from benchmarks.demonstration.page import write_page
from benchmarks.demonstration.progress import Progress, cost_of_kills
from benchmarks.demonstration.runs import ALONE, BATCH, COUNTS, DISTURBED, Options, end, student
from benchmarks.demonstration.screen import WIDTH, Screen
from benchmarks.family import STUDENTS
from benchmarks.teach.programs import last_line
from radioplat.tracking.attempts.attempts import Attempts
from radioplat.tracking.attempts.goodput import goodput

FOLDER = Path("results/demo")
_LOOK_S = 1.0  # between two looks at the runs


class Failed(Exception):
    """A part of the demonstration failed; the message says where to look."""


def main() -> int:
    """Train twice, compare and print; return the exit status."""
    parser = argparse.ArgumentParser(prog="radioplat demo", description=(__doc__ or "").splitlines()[0])
    given = Options()
    parser.add_argument("--kills", type=int, default=given.kills)
    parser.add_argument("--seconds", type=float, default=given.seconds, help="in which the kills should come")
    parser.add_argument("--students", type=int, choices=range(1, len(STUDENTS) + 1), default=given.students)
    parser.add_argument("--seed", type=int, default=given.seed, help="of the kills")
    parser.add_argument("--steps", type=int, help="of both runs; default: so many that the kills come before the end")
    parser.add_argument("--folder", type=Path, default=FOLDER, help=f"of the results, and of both runs ({FOLDER})")
    parser.add_argument("--brief", action="store_true", help="without kNN, engines and replay")
    words = parser.parse_args()
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, end)
    home = words.folder.resolve()
    home.mkdir(parents=True, exist_ok=True)
    options = Options.read(home)
    steps = words.steps or (options.steps if options else enough_steps(words.seconds))
    asked = Options(words.kills, words.seconds, words.students, words.seed, steps)
    if options is not None and options != asked:
        print(f"{home} has a demonstration with {options}: give the same, or another --folder", file=sys.stderr)
        return 2
    asked.write(home)
    progress = Progress(home, asked)
    screen = Screen(progress)
    try:
        with screen.shown():
            clock = Clock(home)
            found = run_all(home, asked, progress, screen, clock, words.brief)
    except Failed as failure:
        print(failure, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        print("interrupted; the same command goes on from here", file=sys.stderr)
        return 130
    show(home, found)
    short = {key: value for key, value in found.items() if key not in ("by_student", "teachers_knn", "replay")}
    print(json.dumps(short))
    faults = [*faults_of(found, asked)]
    for fault in faults:
        print(f"{fault}; see {home / DISTURBED} and {home / 'disturbed.log'}", file=sys.stderr)
    return int(bool(faults))


def enough_steps(seconds: float) -> int:
    """Return so many steps that a run outlasts the kills: between them two cores take a step in twelve seconds."""
    cores = len(os.sched_getaffinity(0))
    return max(20, round(seconds / 7 * min(max(cores / 2, 1), 4)))


class Clock:
    """Seconds of the command over all its starts, kept in the folder."""

    def __init__(self, home: Path) -> None:
        self._path = home / "seconds.json"
        self._before = json.loads(self._path.read_text()) if self._path.exists() else 0.0
        self._begin = time.monotonic()

    @property
    def seconds(self) -> float:
        """Seconds so far; they are written down."""
        now = self._before + time.monotonic() - self._begin
        self._path.write_text(json.dumps(round(now, 1)))
        return now


def run_all(
    home: Path, options: Options, progress: Progress, screen: Screen, clock: Clock, brief: bool
) -> dict[str, Any]:
    """Run every part that is not done, and return all figures.

    Raises:
        Failed: a run ended with an error.
    """
    train(home, ALONE, "left alone, in one process", progress, screen, clock)
    train(home, DISTURBED, "on a cluster that loses processes", progress, screen, clock)
    screen.stage = "samples, hashes, answers"
    progress.look()
    found = measured(home, options, progress)
    costs = cost_of_kills(home, progress.kills)
    if not brief:
        for name in options.names:
            screen.stage = f"engines of {name}"
            screen.update()
            latency = worth.engines(home, name)
            floats = {kind: value for kind, value in latency.items() if kind != "int8"}
            found["by_student"][name] |= {"int8_ms": latency["int8"], "float_ms": min(floats.values())}
        screen.stage = "kNN by the judge"
        screen.update()
        for name, figure in worth.knn(home, options.names).items():
            if name in found["by_student"]:
                found["by_student"][name]["knn"] = figure["value"]
            else:
                found.setdefault("teachers_knn", {})[name] = figure["value"]
        if costs:
            kill, step, seconds = max(costs, key=lambda cost: cost[2])
            screen.stage = f"step {step} again, at the kill that cost most"
            screen.update()
            found["replay"] = {
                "kind": kill.kind,
                "seconds": round(seconds, 1),
                **replayed(home, options, step),
            }
    if costs:
        found["seconds_a_kill"] = round(sum(seconds for _, _, seconds in costs) / len(costs), 1)
    found["seconds"] = round(clock.seconds, 1)
    (home / "figures.json").write_text(json.dumps(found, indent=1) + "\n")
    write_page(home, progress, found)
    screen.stage = "done"
    screen.record(home / "demo.svg", ending(found))
    return found


def train(home: Path, run: str, stage: str, progress: Progress, screen: Screen, clock: Clock) -> None:
    """Run one of the two in a process of its own, unless it is done, and show how far it is.

    Raises:
        Failed: it ended with an error.
    """
    done = home / f"{run}.done"
    if done.exists():
        return
    screen.stage = stage
    environment = os.environ | {"OMP_NUM_THREADS": "1", "PYTHONDONTWRITEBYTECODE": ""}
    command = [sys.executable, "-m", "benchmarks.demonstration.runs", run, str(home)]
    log = home / f"{run}.log"
    with (
        log.open("a") as output,
        # In a session of its own: of a signal to the process group it would get two.
        subprocess.Popen(command, stdout=output, stderr=output, env=environment, start_new_session=True) as process,
    ):
        try:
            while process.poll() is None:
                progress.look(process.pid if run == DISTURBED else None)
                screen.update()
                clock.seconds  # noqa: B018 - it writes them down
                time.sleep(_LOOK_S)
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
        except BaseException:
            process.terminate()
            raise
    if process.returncode:
        raise Failed(f"the run {stage} ended with status {process.returncode}; see the end of {log}, and {home / run}")
    done.touch()


def measured(home: Path, options: Options, progress: Progress) -> dict[str, Any]:
    """Return hashes, samples, forwards and goodput."""
    by_student: dict[str, Any] = {}
    for name in options.names:
        ledger = last_line(
            "benchmarks.judges.ledger", student(home, DISTURBED, name) / "ledger", "--samples", options.samples
        )
        by_student[name] = {
            "sha256": sha256(student(home, DISTURBED, name)),
            "alone": sha256(student(home, ALONE, name)),
            "missing": ledger["missing"],
            "repeated": ledger["repeated"],
        }
    account = goodput(home / DISTURBED / "distill")
    figures = account.kpi() if account else {}
    counted = last_line("benchmarks.judges.family", "forwards", home / COUNTS, "--rows", BATCH)
    batches = options.samples / BATCH
    kinds = Counter(kill.kind for kill in progress.kills)
    worlds = [event.world_size for event in Attempts(home / DISTURBED / "distill").read() if event.event == "start"]
    return {
        "hashes_equal": sum(each["sha256"] == each["alone"] for each in by_student.values()) / len(by_student),
        "blows": len(progress.kills),
        "missing": sum(each["missing"] for each in by_student.values()),
        "repeated": sum(each["repeated"] for each in by_student.values()),
        "teacher_forwards_per_sample": round(max(counted["new"].values()) / batches, 4),
        "teacher_forwards_again": round(max(counted["again"].values()) / batches, 4),
        "goodput": round(figures.get("goodput/useful", 0.0), 4),
        "samples_replayed": int(figures.get("run/samples_replayed", 0)),
        "kinds": dict(sorted(kinds.items())),
        "starts": len(worlds),
        "workers": [min(worlds, default=0), max(worlds, default=0)],
        "steps": options.steps,
        "students": options.students,
        "seed": options.seed,
        "by_student": by_student,
    }


def replayed(home: Path, options: Options, step: int) -> dict[str, Any]:
    """Let ``radioplat replay`` compute a step of the first student again; return its status and its last lines."""
    run, step = student(home, DISTURBED, options.names[0]), min(step, options.steps)
    command = [sys.executable, "-m", "radioplat.cli", "replay", str(run), "--step", str(step)]
    done = subprocess.run(command, capture_output=True, text=True)
    lines = (done.stdout if done.returncode == 0 else done.stdout + done.stderr).strip().splitlines()
    shown = shlex.join(["radioplat", *command[3:]])
    return {"command": shown, "step": step, "same": done.returncode == 0, "lines": lines[-12:]}


def faults_of(found: dict[str, Any], options: Options) -> list[str]:
    """Return what did not hold."""
    faults = []
    for name, each in found["by_student"].items():
        if each["sha256"] != each["alone"]:
            faults.append(f"{name}: its weights are not those of the undisturbed run")
        if each["missing"] or each["repeated"]:
            faults.append(f"{name}: {each['missing']} samples are missing, {each['repeated']} were used twice")
    if found["blows"] < options.kills:
        faults.append(f"{found['blows']} of {options.kills} kills came before the run ended: give more --steps")
    if not found.get("replay", {}).get("same", True):
        faults.append(f"{found['replay']['command']} did not compute the recorded step")
    return faults


def ending(found: dict[str, Any]) -> Panel:
    """Return the last screen: hashes, the ledger's verdict, worth and costs."""
    table = Table(box=None, padding=(0, 1))
    for column in ("student", "sha256sum", "alone", "kNN", "INT8 ms", "float ms"):
        table.add_column(column)
    for name, each in found["by_student"].items():
        same = "[green]the same[/]" if each["sha256"] == each["alone"] else "[red]ANOTHER[/]"
        worth_of = [f"{each[key]:.3f}" if key in each else "" for key in ("knn", "int8_ms", "float_ms")]
        table.add_row(name, each["sha256"][:24] + "...", same, *worth_of)
    for name, value in found.get("teachers_knn", {}).items():
        table.add_row(f"teacher {name}", "", "", f"{value:.3f}", "", "")
    kinds = ", ".join(f"{count} {kind}s" for kind, count in found["kinds"].items())
    fewest, most = found["workers"]
    lines = [
        f"{found['blows']} kills ({kinds})",
        f"{found['starts']} starts of the workers, {fewest} to {most} of them",
        f"samples: {found['missing']} missing, {found['repeated']} used twice",
        f"forwards of a teacher: {found['teacher_forwards_per_sample']:.3f} for each sample, and "
        f"{found['teacher_forwards_again']:.3f} again",
        f"goodput {found['goodput']:.1%}; from a kill to the next step: {found.get('seconds_a_kill', 0):.1f} s (mean)",
    ]
    if again := found.get("replay"):
        same = "the same again" if again["same"] else "NOT THE SAME"
        lines.append(f"replay of step {again['step']}, at the kill that cost most ({again['seconds']:.0f} s): {same}")
    lines.append(f"{found.get('seconds', 0):.0f} s")
    return Panel(Group(table, Text(), *map(Text, lines)), title="radioplat demo", title_align="left", width=WIDTH)


def show(home: Path, found: dict[str, Any]) -> None:
    """Print the end on stderr."""
    from rich.console import Console

    console = Console(stderr=True, width=None if sys.stderr.isatty() else 140)
    console.print(ending(found))
    for name, each in found["by_student"].items():
        console.print(
            f"{each['sha256']}  {name} (alone: {each['alone']})", markup=False, highlight=False, soft_wrap=True
        )
    if "replay" in found:
        console.print("\n".join([found["replay"]["command"], *found["replay"]["lines"]]), markup=False, highlight=False)
    console.print(f"page: {home / 'demo.html'}; recording: {home / 'demo.svg'}", markup=False, soft_wrap=True)


def sha256(folder: Path) -> str:
    """Return the hash of the last checkpoint's weights."""
    return hashlib.sha256((folder / "model_latest" / "student.safetensors").read_bytes()).hexdigest()


if __name__ == "__main__":
    sys.exit(main())
