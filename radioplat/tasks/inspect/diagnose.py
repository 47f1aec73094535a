"""``radioplat diagnose RUN``: find the cause of a run's end from the files in its folder."""

from __future__ import annotations

import re
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path

from radioplat.common import out_of_memory
from radioplat.data.ledger.ledger import read_rejected
from radioplat.data.loading.run_data import RunData
from radioplat.errors import RadioplatError
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.shared.run_folder import run_folder
from radioplat.tracking.attempts.attempts import Attempts
from radioplat.tracking.attempts.goodput import Goodput, goodput
from radioplat.tracking.attempts.logs import LastWords, attempt_folder, begun, cause_of, last_words
from radioplat.tracking.status import read_status
from radioplat.training.accounting.folder_versions import check_readable_run
from radioplat.training.checkpoints.checkpoint import Survey, survey
from radioplat.training.checkpoints.unreadable import in_the_way

_ALIVE_S = 120.0  # a worker with a newer health status is alive
_TAIL = 65536  # bytes of a log that are searched
_EXAMPLES = 3
# Messages of ranks after another one has failed: consequences, not causes.
_SECONDARY = re.compile(
    r"connection (closed|reset|refused)|closed by peer|broken pipe|peer rank|socket timeout|"
    r"(Actor|Worker)\w*(Died|Crashed|Error)|actor died|NCCL.*(remote|system) error|heartbeat",
    re.IGNORECASE,
)
_NO_MEMORY = f"(?i:{out_of_memory.WORDS})"
# Patterns in a log with meaning and advice; the first match counts.
_SIGNS = (
    (r"No space left on device", "a disk is full", "Free space on the disk of results_dir, or keep fewer checkpoints."),
    (r"Fatal Python error: (Segmentation fault|Aborted|Bus error)", "native code crashed", "The log shows where."),
    (
        rf"CUDA error: (?![^\n]*{_NO_MEMORY})[^\n]*|Xid|uncorrectable ECC",
        "a GPU failed",
        "Drain that node; run the command again.",
    ),
    (r"teacher \S+ ran out of memory[^\n]*", "a teacher ran out of memory", "Lower its max_batch (teachers.<name>)."),
    (rf"{_NO_MEMORY}|OutOfMemory|MemoryError", "memory ran out", "Lower dataset.batch_size."),
    (r"(?m)^Killed$|SIGKILL|signal 9", "the process was killed", "Look for the out-of-memory killer in dmesg."),
)
_ADVICE = {
    "hang": "The stacks show where. If this work needs the time, raise train.hang_timeout_s.",
    "oom": "The next start splits micro-batches into halves; a smaller dataset.batch_size is faster.",
    "node_lost": "Run the command again: it continues from the last checkpoint.",
    "worker_killed": "Look at the worker's log and the node's dmesg; run the command again to continue.",
    "storage": "Repair the storage (its mount, network or credentials) and run the same command again to continue.",
    "stopped": "Run the same command again: it continues from the last checkpoint.",
    "drained": "Run the command again: it continues from the last checkpoint.",
    "non_finite": "Lower train.optim.lr, or check these samples; train.non_finite=skip_step continues without them.",
}


@dataclass
class Diagnosis:
    """The outcome of a run and its cause.

    Attributes:
        cause: one line.
        evidence: lines that support it.
        advice: next steps; empty if none are needed.
        account: its goodput, if it recorded that.
    """

    cause: str
    evidence: list[str] = field(default_factory=list)
    advice: str = ""
    account: Goodput | None = None


def diagnose(run: str | Path) -> Diagnosis:
    """Diagnose the run in a results folder, or in the folder of one task.

    Raises:
        DataError: no run has started there.
        NewerRecord: a newer version wrote a record of the run.
        RadioplatError: an older version did, and the record must be brought up first.
    """
    folder = run_folder(run)
    check_readable_run(folder)
    checkpoints = survey(folder)
    lines = _last_start(read_status(folder / "status.json"), checkpoints)
    attempt = begun(folder)
    status = lines[-1].get("status", "") if lines else ""
    result = _diagnose(folder, lines, attempt, status)
    result.account = goodput(folder)
    result.evidence += _facts(folder, lines, attempt, checkpoints)
    return result


def _last_start(lines: list[dict], checkpoints: Survey) -> list[dict]:
    """Return the lines of the last start. A start that was refused is passed over if there was another: it changed
    nothing of the run. It counts if the run has checkpoints that keep it from continuing.
    """
    edges = [i for i, line in enumerate(lines) if line.get("status") == "STARTED"]
    starts = [lines[first:end] for first, end in pairwise([*edges, len(lines)])] or [lines]
    if in_the_way(checkpoints.step, checkpoints.unreadable):
        return starts[-1]
    return next((start for start in reversed(starts) if not any("refused" in line for line in start)), starts[-1])


def _diagnose(folder: Path, lines: list[dict], attempt: int, status: str) -> Diagnosis:
    if status == "SUCCESS":
        return Diagnosis(f"no failure: {lines[-1]['message']}")
    failure = next((line["message"] for line in reversed(lines) if line.get("status") == "FAILURE"), "")
    # Errors of the run itself name the cause; Ray's messages about a lost worker group do not.
    words = _real_causes(last_words(folder, attempt))
    cause, detail = cause_of(folder, attempt) if attempt else ("", "")
    if words and words[0].cause == "hang" or cause == "hang":
        return _hang(folder, attempt, words[0] if words else None, detail)
    if "not finite" in failure:
        return _not_finite(folder, failure)
    if failure and not _SECONDARY.search(failure) and not (words and words[0].cause == "oom"):
        return Diagnosis(_one_line(failure), list(_signs(folder, attempt))[:1])
    if words:
        who = f"attempt {attempt}, rank {words[0].rank}"
        return Diagnosis(f"{who}: {_one_line(words[0].detail)}", advice=_ADVICE.get(words[0].cause, ""))
    sign = next(_signs(folder, attempt), "")
    if cause and cause not in ("unknown", "done"):
        return Diagnosis(
            f"attempt {attempt}: {cause}: {_one_line(detail)}", [sign] if sign else [], _ADVICE.get(cause, "")
        )
    if sign:
        return Diagnosis(f"attempt {attempt}: {sign}")
    if failure:
        return Diagnosis(_one_line(failure))
    return _silent(folder, attempt)


def _hang(folder: Path, attempt: int, words: LastWords | None, detail: str) -> Diagnosis:
    detail = words.detail if words else detail
    named = re.search(r"\brank (\d+)", detail)
    rank = int(named[1]) if named else words.rank if words else 0
    place = _place(attempt_folder(folder, attempt) / f"stacks_{rank}.txt")
    at = f"; it is at {place}" if place else ""
    return Diagnosis(
        f"attempt {attempt}: rank {rank} hung: {_one_line(detail)}{at}",
        [f"stacks: {path}" for path in sorted(attempt_folder(folder, attempt).glob("stacks_*.txt"))],
        _ADVICE["hang"],
    )


def _place(stacks: Path) -> str:
    """Return the position of the training thread: its innermost frame in this package, and its innermost frame."""
    try:
        text = stacks.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
    frame = re.compile(r'File "([^"]+)", line (\d+) in (.+)')
    for thread in re.split(r"\n(?=(?:Current thread|Thread) )", text):
        frames = frame.findall(thread)
        # Innermost first. The training thread has a frame in worker.py.
        if any(path.endswith("training/loop/worker.py") for path, _, _ in frames):
            own = next(((p, n, f) for p, n, f in frames if "radioplat" in p), frames[0])
            places = [f"{'/'.join(Path(p).parts[-3:])}:{n} in {f}" for p, n, f in dict.fromkeys([own, frames[0]])]
            return ", below it ".join(places)
    return ""


def _not_finite(folder: Path, failure: str) -> Diagnosis:
    """Return the diagnosis with the samples of the last step whose loss was not finite."""
    evidence = []
    rows = [row for row in read_rejected(folder / "ledger").to_pylist() if row["reason"].startswith("non_finite")]
    if rows:
        last = [row for row in rows if row["step"] == rows[-1]["step"]]
        evidence = [f"step {last[0]['step']}: {len(last)} samples in micro-batches with {last[0]['reason']}"]
        evidence += [f"sample {row['id']}{_name(folder, row['id'])}" for row in last[:_EXAMPLES]]
    return Diagnosis(_one_line(failure), evidence, _ADVICE["non_finite"])


def _name(folder: Path, row: int) -> str:
    try:
        dataset = load_spec(folder / "experiment.yaml").dataset
        index = RunData.load(folder / "data", dataset.train_dataset).index
        return f": {index.shard_paths[int(index.shard[row])]} {index.key(row)}"
    except (RadioplatError, OSError):
        return ""


def _silent(folder: Path, attempt: int) -> Diagnosis:
    """Return the diagnosis without any message: the run is alive, or was killed from outside."""
    statuses = attempt_folder(folder, attempt).glob("pulse_*.json")
    age = min((time.time() - path.stat().st_mtime for path in statuses), default=None)
    if age is None:
        return Diagnosis("it ended before a worker started, without a message", advice="Run the command again.")
    if age < _ALIVE_S:
        return Diagnosis(f"no failure: its workers were alive {age:.0f} s ago")
    return Diagnosis(
        f"attempt {attempt}: the run ended without a message {age / 60:.0f} minutes ago: killed from outside, or "
        "its machine was lost",
        advice=_ADVICE["node_lost"],
    )


def _real_causes(words: list[LastWords]) -> list[LastWords]:
    """Return the messages that are not consequences of another rank's end, hangs and lack of memory first."""
    real = [w for w in words if not _SECONDARY.search(w.detail)] or words
    return sorted(real, key=lambda w: (w.cause not in ("hang", "oom"), w.time))


def _signs(folder: Path, attempt: int) -> Iterator[str]:
    """Yield meaning, match and advice of known patterns in the logs of an attempt."""
    for path in sorted(attempt_folder(folder, attempt).glob("*.log")):
        with open(path, "rb") as file:
            file.seek(max(0, path.stat().st_size - _TAIL))
            text = file.read().decode("utf-8", "replace")
        for pattern, meaning, advice in _SIGNS:
            if match := re.search(pattern, text):
                yield f"{meaning} ({path.name}: {match[0][:200]}). {advice}"
                break


def _facts(folder: Path, lines: list[dict], attempt: int, checkpoints: Survey) -> list[str]:
    """Return lines about step, checkpoint, earlier attempts, warnings and logs."""
    facts = []
    step = next((line["step"] for line in reversed(lines) if "max_step" in line), None)
    if step is not None:
        facts.append(f"it reached step {step}")
    facts.append(
        f"last complete checkpoint: {checkpoints.newest[0].name}, step {checkpoints.step}"
        if checkpoints.newest
        else "no readable checkpoint"
        if checkpoints.unreadable
        else "no checkpoint"
    )
    facts += [f"{Path(one.path).name}: {one}" for one in checkpoints.unreadable]
    causes = Counter(cause for n in range(1, attempt) if (cause := cause_of(folder, n)[0]))
    if causes:
        facts.append("earlier attempts ended by " + ", ".join(f"{cause} ({n})" for cause, n in causes.items()))
    if events := Attempts(folder).read():
        facts.append(f"workers: {events[-1].world_size}")
    warnings = [line["message"] for line in lines if line.get("verbosity") in ("WARNING", "ERROR")]
    facts += [f"status.json: {_one_line(message)}" for message in warnings[-_EXAMPLES:]]
    if attempt and (logs := attempt_folder(folder, attempt)).is_dir():
        facts.append(f"logs: {logs}")
    return facts


def _one_line(text: str) -> str:
    return " ".join(text.split())
