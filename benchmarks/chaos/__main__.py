"""What do kills, outages, full disks, second writers, moving clocks and torn files do to a run?

``python -m benchmarks.chaos [--seconds 240] [--trials N] [--seed 0] [--only KIND ...]``. Each trial is a real run of
24 steps, by the command ``radioplat distill``, to which something is done from outside: `faults.c` kills its process
at a random operation on its files or moves its clock; a proxy in front of a loopback S3 server fails; its disk is full;
and so on. It is started again until it is done. Then it is compared with a run without faults, with nothing of ours:
`benchmarks/judges/ledger.py` reads its ledger, and its last weights are compared bit for bit. With ``--hosts 2`` it is
trained on two hosts that share nothing but the store (`hosts.py`).

A trial holds if every start ended as it should, each sample was used once, and the run came to its end. The last line
on stdout is one JSON object: ``trials, held, bit_equal, unlearned_unreported, tracebacks, hangs, memory_over``, and
these by kind. What was done in a trial that does not hold, and its folder, is kept below ``results/chaos``. The exit
status is 1 unless all hold. A C compiler is needed, and root for full disks
and hosts.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from types import ModuleType
from typing import Any

from benchmarks.chaos import cluster, local, storage
from benchmarks.chaos.hosts import Hosts
from benchmarks.chaos.process import start_server
from benchmarks.chaos.trial import Quiet, Trial, quiet_run
from benchmarks.elastic_inputs import make_inputs
from radioplat.common import terminal

FOLDER = Path("results/chaos")
TWO_HOSTS, GROUPS = "two_hosts", (local, storage, cluster)
COUNTS = ("unlearned_unreported", "tracebacks", "hangs", "memory_over")


def main() -> int:
    """Run trials until the time is over, one of each kind in turn."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=240, help="start no trial after so many")
    parser.add_argument("--trials", type=int, help="at most so many")
    parser.add_argument("--seed", type=int, default=0)
    kinds = [kind for group in GROUPS for kind in group.KINDS]
    parser.add_argument("--only", nargs="+", choices=kinds, metavar="KIND", default=kinds, help=", ".join(kinds))
    parser.add_argument("--hosts", type=int, choices=[1, 2], default=1, help="2: trials on two hosts alone")
    given = parser.parse_args()
    if given.hosts == 2:
        given.only = [TWO_HOSTS]
    begin, results = time.monotonic(), []
    with tempfile.TemporaryDirectory(prefix="chaos-") as temporary:
        home = Path(temporary)
        setting = Setting(home)
        number = 0
        while time.monotonic() - begin < given.seconds and (given.trials is None or number < given.trials):
            kind = given.only[number % len(given.only)]
            results.append(setting.trial(kind, given.seed, number))
            number += 1
        setting.close()
    return show(results)


class Setting:
    """What the trials share: inputs, the store, and the runs without faults.

    Args:
        home: a folder for everything.
    """

    def __init__(self, home: Path) -> None:
        self._home = home
        make_inputs(home / "inputs")
        start_server(home)
        self._store: storage.Store | None = None
        self._quiet: dict[ModuleType, Quiet] = {}
        self._hosts: Hosts | None = None

    def close(self) -> None:
        """Remove the hosts, if there are any."""
        if self._hosts is not None:
            self._hosts.close()

    def trial(self, kind: str, seed: int, number: int) -> dict[str, Any]:
        """Do one trial; return what came of it."""
        if kind == TWO_HOSTS:
            return self._on_two_hosts(seed, number)
        group = next(group for group in GROUPS if kind in group.KINDS)
        quiet = self._quiet_of(group)
        trial = self._new(f"{kind}_{number}", group, random.Random(f"{seed} {kind} {number}"))
        begin, more = time.monotonic(), {"proxy": self._proxy} if group is storage else {}
        group.KINDS[kind](trial, quiet, **more)
        result = {"kind": kind, **trial.judge(quiet), "done": trial.done}
        terminal.note(f"{kind} {number}: {'holds' if result['held'] else 'DOES NOT HOLD'}, {'; '.join(trial.done)}")
        if not (result["held"] and result["bit_equal"]):
            kept = FOLDER / f"seed_{seed}" / trial.folder.name
            shutil.rmtree(kept, ignore_errors=True)
            shutil.copytree(trial.folder, kept, symlinks=True)
            (kept / "trial.json").write_text(json.dumps(result, indent=1))
            terminal.note(f"  kept in {kept}: {'; '.join(trial.problems) or 'other weights'}")
        shutil.rmtree(trial.folder)
        return {**result, "seconds": round(time.monotonic() - begin, 1)}

    def _on_two_hosts(self, seed: int, number: int) -> dict[str, Any]:
        quiet = self._quiet_of(storage)
        assert self._store is not None
        if self._hosts is None:
            self._hosts = Hosts(self._home, self._store, self._home / "faults.so")
        begin, name = time.monotonic(), f"{TWO_HOSTS}_{number}"
        result = {"kind": TWO_HOSTS, **self._hosts.trial(name, random.Random(f"{seed} {number}"), quiet)}
        terminal.note(f"{name}: {'holds' if result['held'] else 'DOES NOT HOLD'}, {'; '.join(result['done'])}")
        for host in self._hosts.hosts:
            if not (result["held"] and result["bit_equal"]):
                kept = FOLDER / f"seed_{seed}" / name / host.folder.name
                shutil.rmtree(kept, ignore_errors=True)
                kept.mkdir(parents=True)
                for path in host.folder.glob(f"{name}*"):
                    path.rename(kept / path.name) if path.is_file() else shutil.copytree(
                        path, kept / path.name, symlinks=True
                    )
                terminal.note(f"  kept in {kept}: {'; '.join(result['problems']) or 'other weights'}")
        return {**result, "seconds": round(time.monotonic() - begin, 1)}

    def _quiet_of(self, group: ModuleType) -> Quiet:
        if group is storage and self._store is None:
            self._store = storage.Store()
            self._store.put_folder(self._home / "inputs" / "shards", "shards")
            self._proxy = storage.Proxy(self._store.address)
        if group not in self._quiet:
            trial = self._new(f"quiet_{group.__name__.rpartition('.')[2]}", group, random.Random(0), quiet=True)
            self._quiet[group] = quiet_run(trial)
        return self._quiet[group]

    def _new(self, name: str, group: ModuleType, rng: random.Random, quiet: bool = False) -> Trial:
        changes = storage.changes(name) if group is storage else cluster.changes(quiet) if group is cluster else {}
        environment = storage.environment(self._proxy.url) if group is storage else {}
        return Trial(self._home / name, self._home / "inputs", rng, changes, environment)


def show(results: list[dict[str, Any]]) -> int:
    """Print what came of the trials; return the exit status."""
    by_kind: dict[str, Counter[str]] = {}
    for result in results:
        counts = by_kind.setdefault(result["kind"], Counter(trials=0, held=0, bit_equal=0, **dict.fromkeys(COUNTS, 0)))
        counts["trials"] += 1
        counts.update({name: int(result[name]) for name in ("held", "bit_equal")})
        counts.update({name: result.get(name, 0) for name in COUNTS})
    totals = sum(by_kind.values(), Counter())
    names = ["trials", "held", "bit_equal", *COUNTS]
    rows = [[kind, *(str(counts[name]) for name in names)] for kind, counts in by_kind.items()]
    terminal.show_table("what was done to runs, and what held", ["", *names], rows)
    kinds = {kind: dict(counts) for kind, counts in by_kind.items()}
    print(json.dumps({**{name: totals[name] for name in names}, "kinds": kinds}))
    return 0 if totals["held"] == totals["bit_equal"] == totals["trials"] > 0 else 1


if __name__ == "__main__":
    os.environ.setdefault("OMP_NUM_THREADS", "1")
    sys.exit(main())
