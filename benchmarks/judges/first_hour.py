"""Play the first hour of four kinds of users, command by command from the pages' own code blocks.

``python -m benchmarks.judges.first_hour [--only laptop ...] [--keep FOLDER]``. Imports nothing of radioplat. A clone of
this checkout is made in an empty folder; there the blocks of each kind's pages run in their order, with this
environment's programs first on the path (`benchmarks/judges/first_hour_page.py` says which blocks are steps). A command
for a program or a machine that is not here is left out with the reason. A command before a ``kill`` runs in the
background until the kill, as `ray start --block` does until the end.

The last line on stdout is one JSON object: for each kind ``commands``, ``passed``, ``failed`` (the command, the exit
status and the last lines), ``left_out`` (commands with reasons), ``not_printed`` (lines that a page shows and the
command did not print, numbers aside) and ``seconds``. Exit status 1 if a command failed.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from benchmarks.judges.first_hour_page import Step, steps

ROOT = Path(__file__).parents[2]
FIRST = "docs/tutorials/first_student.md"
KINDS = {
    "laptop": [
        FIRST,
        "docs/how_to/laptop.md",
        "docs/tutorials/student_to_engine.md",
        "docs/tutorials/your_images.md",
        "docs/tutorials/why_did_a_step_jump.md",
        "docs/tutorials/what_did_this_teacher_buy.md",
    ],
    "one node of 8 GPUs": ["docs/how_to/node_8gpu.md"],
    "cluster": [FIRST, "docs/tutorials/cluster.md", "docs/how_to/clusters.md"],
    "jetson": [FIRST, "docs/how_to/jetson.md"],
}
# Commands of machines that are not here, by a pattern, with the reason.
ELSEWHERE = {
    r"^(python3? -m venv|pip install)": "this environment has it already",
    r"ray up |/shared/|localhost:8265": "it needs machines of a cloud",
    r"^kubectl ": "it needs a Kubernetes cluster",
    r"REGISTRY|YOURS|pinned\.py": "it needs a registry of images",
    r"^(scp|ssh|cd bundle)\b|verify\.sh|infer_tensorrt": "it runs on a Jetson",
}
# Commands that a machine without GPUs and without those weights must refuse, and all that it may say.
REFUSED = {r"specs/node_8gpu\.yaml": re.compile(r"does not exist|no such|not fetched|GPU|index|shards|fetch")}
BACKGROUND = re.compile(r"^ray start .*--block")
UNTIL = {r"lease\.json": "results/cluster/distill/model_epoch_001"}  # what a kill waits for
LIMIT_S = 1500


@dataclass
class Played:
    """What happened to the commands of one kind of user."""

    commands: int = 0
    passed: int = 0
    failed: list[dict[str, Any]] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    not_printed: list[str] = field(default_factory=list)
    seconds: float = 0.0


def main() -> int:
    """Play and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", nargs="+", choices=tuple(KINDS), default=list(KINDS), metavar="KIND")
    parser.add_argument("--keep", type=Path, help="folder for the clones; default: a temporary one")
    given = parser.parse_args()
    results = {}
    with contextlib.ExitStack() as stack:
        home = given.keep or Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="first_hour.")))
        for kind in given.only:
            folder = home / kind.replace(" ", "_")
            subprocess.run(["git", "clone", "-q", str(ROOT), str(folder)], check=True)
            results[kind] = vars(played(folder, KINDS[kind]))
            print(f"{kind}: {json.dumps(results[kind], indent=1)}", file=sys.stderr, flush=True)
    print(json.dumps(results))
    return int(any(each["failed"] for each in results.values()))


def played(folder: Path, pages: list[str]) -> Played:
    """Take the steps of some pages in a clone."""
    result, begin = Played(), time.monotonic()
    with reader(folder) as person:
        for page in pages:
            todo = steps(folder / page)
            own_spec(folder, page)
            for number, step in enumerate(todo):
                following = todo[number + 1].text if number + 1 < len(todo) else ""
                if step.kind == "write":
                    (folder / step.name).write_text(step.text)
                elif step.kind == "merge":
                    base = yaml.safe_load((folder / step.base).read_text())
                    (folder / step.name).write_text(yaml.safe_dump(merged(base, yaml.safe_load(step.text))))
                else:
                    person.take(step, page, following.startswith("kill "), result)
            person.end()
    result.seconds = round(time.monotonic() - begin, 1)
    return result


def own_spec(folder: Path, page: str) -> None:
    """Write ``spec.yaml``, by which pages mean the reader's own: that of the first student, in ``results``.

    Its run is there too, but for a page about clusters, which begins one.
    """
    first = folder / "first.yaml"
    if not first.exists():
        return
    results = "results/on_a_cluster" if "clusters" in page else "results"
    spec = {**yaml.safe_load(first.read_text()), "results_dir": results}
    (folder / "spec.yaml").write_text(yaml.safe_dump(spec))
    if results == "results" and not (folder / "results" / "distill").exists():
        shutil.copytree(folder / "results" / "first" / "distill", folder / "results" / "distill", symlinks=True)


class Reader:
    """A person with a shell: its variables and folder last from command to command."""

    def __init__(self, folder: Path) -> None:
        self._folder, self._state = folder, folder.parent / f"{folder.name}.state"
        programs = Path(sys.executable).parent
        home = folder.parent / f"{folder.name}.home"
        home.mkdir()
        unset = {"PYTHONPATH", "RAY_ADDRESS", "RAY_AUTH_MODE", "WANDB_API_KEY", "OMP_NUM_THREADS"}
        kept = {name: value for name, value in os.environ.items() if name not in unset}
        self._variables = {**kept, "HOME": str(home), "PATH": f"{programs}:{kept['PATH']}", "PYTHONPATH": str(folder)}
        self._background: list[subprocess.Popen] = []

    def take(self, step: Step, page: str, killed_next: bool, result: Played) -> None:
        """Give one command, and enter how it went into ``result``."""
        shown = " ".join(step.text.split()) if step.kind == "run" else f"python block, line {step.line}"
        where = f"{page}:{step.line} {shown}"
        if reason := self._absent(step):
            result.left_out[where] = reason
            return
        result.commands += 1
        print(f"$ {shown}", file=sys.stderr, flush=True)
        if step.kind == "run" and (killed_next or BACKGROUND.search(step.text)):
            self._start(step.text)
            result.passed += 1
            return
        if step.text.startswith("kill "):
            self._wait_before_kill(step.text)
        status, output = self._run(step)
        if step.text.startswith("kill "):
            job = self._background.pop()
            job.wait(120)
            if job.returncode == 0:
                result.failed.append({"command": where, "status": 0, "output": "what was killed ended well"})
                return
        refused = next((rule for pattern, rule in REFUSED.items() if re.search(pattern, step.text)), None)
        errors = [line for line in output.splitlines() if line.startswith("error ")]
        if status == 0 or (refused and errors and all(refused.search(line) for line in errors)):
            result.passed += 1
            result.not_printed += [f"{page}:{step.line} {line}" for line in missing(step.output, output)]
        else:
            result.failed.append({"command": where, "status": status, "output": output[-1500:]})

    def end(self) -> None:
        """End what runs in the background."""
        for process in self._background:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(60)
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
        self._background.clear()

    def _absent(self, step: Step) -> str:
        """Return why a command is left out; empty if it is not."""
        if step.kind != "run":
            return ""
        for pattern, reason in ELSEWHERE.items():
            if re.search(pattern, step.text):
                return reason
        program = re.sub(r"^(?:[A-Z_]+=\S+ )*", "", step.text).split()[0]
        builtin = program in ("for", "export", "cd", "kill") or (self._folder / program).exists()
        installed = builtin or shutil.which(program, path=self._variables["PATH"]) is not None
        return "" if installed else f"{program} is not installed here"

    def _run(self, step: Step) -> tuple[int, str]:
        if step.kind == "python":
            command = [sys.executable, "-c", step.text]
        else:
            keep = f"code=$?; env -0 > {self._state}; exit $code"
            command = ["bash", "-c", f"{step.text}\n{keep}"]
        log = (
            self._folder.parent / f"{self._folder.name}.output"
        )  # no pipe: what a command leaves running would hold it
        with log.open("w") as output:
            try:
                status = subprocess.run(
                    command, cwd=self._folder, env=self._variables, timeout=LIMIT_S,
                    stdout=output, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
                ).returncode  # fmt: skip
            except subprocess.TimeoutExpired:
                status = 124
        if step.kind == "run" and self._state.exists():
            pairs = (each.split("=", 1) for each in self._state.read_text().split("\0") if "=" in each)
            self._variables = dict(pairs)  # type: ignore[arg-type]
        return status, log.read_text(errors="replace")

    def _start(self, command: str) -> None:
        log = (self._folder.parent / f"{self._folder.name}.background.{len(self._background)}").open("w")
        process = subprocess.Popen(
            ["bash", "-c", command], cwd=self._folder, env=self._variables, start_new_session=True,
            stdout=log, stderr=subprocess.STDOUT, stdin=subprocess.DEVNULL,
        )  # fmt: skip
        self._background.append(process)
        if port := re.search(r"--port=(\d+)", command):
            until = time.monotonic() + 60
            while not _listens(int(port[1])) and time.monotonic() < until:
                time.sleep(1)
            time.sleep(10)  # the dashboard is a process of its own

    def _wait_before_kill(self, command: str) -> None:
        path = next((value for pattern, value in UNTIL.items() if re.search(pattern, command)), None)
        until = time.monotonic() + 300
        while path and not (self._folder / path).exists() and time.monotonic() < until:
            time.sleep(0.5)


@contextlib.contextmanager
def reader(folder: Path) -> Iterator[Reader]:
    """Give a :class:`Reader` whose processes end with the block."""
    person = Reader(folder)
    try:
        yield person
    finally:
        person.end()


def missing(shown: list[str], output: str) -> list[str]:
    """Return the lines that a page shows and ``output`` does not have, numbers, tables' widths and ``...`` aside."""
    printed = _plain(output)
    lines = []
    for line in shown:
        parts = [part for cell in re.split(r"[│┃]", line) for part in cell.split("...")]
        if any(_plain(part) and _plain(part) not in printed for part in parts):
            lines.append(line)
    return lines


def _plain(text: str) -> str:
    """Return text without box characters, with one space between words and one digit for each number."""
    text = re.sub(r"\x1b\[[0-9;]*m|[│┃┏┓┗┛┡┩└┘┳┴╇┴━─┬┼╈]", " ", text)
    text = re.sub(r"raysubmit_\w+", "raysubmit", text)
    return " ".join(re.sub(r"\d[\d.,:e+-]*", "0", text).split())


def merged(base: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """Return ``base`` with ``changes`` in it, section by section."""
    result = dict(base)
    for name, value in changes.items():
        both = isinstance(value, dict) and isinstance(result.get(name), dict)
        result[name] = merged(result[name], value) if both else value
    return result


def _listens(port: int) -> bool:
    with socket.socket() as tried:
        tried.settimeout(1)
        return tried.connect_ex(("127.0.0.1", port)) == 0


if __name__ == "__main__":
    sys.exit(main())
