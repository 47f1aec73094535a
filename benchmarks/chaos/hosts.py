"""Two hosts on this machine: mount, network and UTS namespaces that share nothing but a loopback S3 server.

Each has its own network, joined to the store by a veth pair of 1 Gbit/s and a proxy that adds 5 ms and loses one piece
in a hundred for 0.2 s (``tc netem``, which does the same, is not in every kernel), its own ``/tmp`` and name. The clock
of the second is a minute ahead. A run is trained on one, killed or cut off there, goes on from the copies in the store
on the other, and is exported.
"""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import yaml

from benchmarks.chaos import storage
from benchmarks.chaos.process import HANG_S, Faults
from benchmarks.chaos.trial import BATCH, EVERY, STEPS, Quiet, change, digest, newest_step
from benchmarks.elastic_inputs import make_inputs, tiny_spec
from benchmarks.judges.ledger import judged

NETWORK = "10.77"
RATE = ("tbf", "rate", "1gbit", "burst", "256kbit", "latency", "50ms")
DELAY_S, LOST = 0.005, 0.01
AHEAD_S = 60  # of the second host's clock


class Host:
    """A network, mount and UTS namespace; its files are those of this machine but for ``/tmp``.

    Args:
        number: 1 or 2; part of its name and address.
        folder: on this machine; the host's ``/tmp``.
    """

    def __init__(self, number: int, folder: Path) -> None:
        self.name, self.folder = f"chaos{os.getpid() % 10000}-{number}", folder
        self._outside = f"ch{os.getpid() % 10000}v{number}"
        self.address = f"{NETWORK}.{number}.2"
        self.gateway = f"{NETWORK}.{number}.1"
        folder.mkdir(parents=True, exist_ok=True)
        inside = f"{self._outside}i"
        _ip("netns", "add", self.name)
        _ip("link", "add", self._outside, "type", "veth", "peer", "name", inside)
        _ip("link", "set", inside, "netns", self.name)
        _ip("addr", "add", f"{self.gateway}/24", "dev", self._outside)
        _ip("link", "set", self._outside, "up")
        _ip("-n", self.name, "addr", "add", f"{self.address}/24", "dev", inside)
        for device in (inside, "lo"):
            _ip("-n", self.name, "link", "set", device, "up")
        _run("tc", "qdisc", "add", "dev", self._outside, "root", *RATE)
        _run("ip", "netns", "exec", self.name, "tc", "qdisc", "add", "dev", inside, "root", *RATE)

    def start(self, *command: str, output: Path, **environment: str) -> subprocess.Popen[bytes]:
        """Start a command on the host, in ``/tmp``."""
        prepare = f'mount --bind {self.folder} /tmp && hostname {self.name} && cd /tmp && exec "$@"'
        whole = ["ip", "netns", "exec", self.name, "unshare", "--mount", "--uts", "sh", "-c", prepare, "sh", *command]
        variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        with output.open("ab") as file:
            return subprocess.Popen(whole, stdout=file, stderr=file, env=variables, start_new_session=True)

    def cut_off(self, off: bool) -> None:
        """Take its link down, or up again."""
        _ip("link", "set", self._outside, "down" if off else "up")

    def close(self) -> None:
        """Remove the namespace; its processes must have ended."""
        _ip("link", "del", self._outside)
        _ip("netns", "del", self.name)


class Hosts:
    """Two hosts, each with a proxy to the store; the teacher's weights are copied to both.

    Args:
        home: a folder on this machine.
        store: that both reach.
        library: `faults.c`, compiled.
    """

    def __init__(self, home: Path, store: storage.Store, library: Path) -> None:
        self._library = library
        self.hosts = [Host(number, home / f"host_{number}") for number in (1, 2)]
        self._proxies = [storage.Proxy(store.address, host.gateway, DELAY_S, LOST) for host in self.hosts]
        self._faults = []
        for number, host in enumerate(self.hosts):
            make_inputs(host.folder / "inputs")
            faults = Faults(host.folder / "switch", Path("/tmp/nothing"))
            faults.shift_clock(number * AHEAD_S)
            self._faults.append(faults)

    def close(self) -> None:
        """Remove the hosts."""
        for host in self.hosts:
            host.close()

    def trial(self, name: str, rng: random.Random, quiet: Quiet) -> dict[str, Any]:
        """Train, kill or cut off, recover on the other host, and export there."""
        done: list[str] = []
        problems: list[str] = []
        counts: Counter[str] = Counter()
        place = rng.randrange(2)
        cut: tuple[int, subprocess.Popen[bytes]] | None = None
        for _ in range(rng.randint(1, 2)):
            command = self._start(place, name, "distill")
            step = rng.randint(EVERY, STEPS - 4)
            _until(command, lambda: newest_step(self._run(place, name)) >= step)  # noqa: B023 (called here alone)
            if command.poll() is not None:
                break
            if cut is None and rng.random() < 0.5:
                self.hosts[place].cut_off(True)
                cut = place, command
                done.append(f"host {place + 1} cut off after step {step}")
                place = 1 - place
                break
            os.killpg(command.pid, signal.SIGKILL)
            command.wait()
            done.append(f"host {place + 1} killed after step {step}")
            place = 1 - place
        command = self._start(place, name, "distill")
        if cut is not None:
            _until(command, lambda: newest_step(self._run(place, name)) >= STEPS // 2)
            self.hosts[cut[0]].cut_off(False)
        status = _wait(command, counts)
        done.append(f"finished on host {place + 1}: exit {status}")
        if cut is not None:
            old = _wait(cut[1], counts)
            done.append(f"the one that was cut off: exit {old}")
            if old not in (0, 1):
                problems.append(f"the one that was cut off: exit status {old}")
        export = _wait(self._start(place, name, "export"), counts)
        if (status, export) != (0, 0):
            problems.append(f"exit status {status}, export {export}: {self._text(place, name)[-400:]}")
        for number in (0, 1):
            counts["tracebacks"] += self._text(number, name).count("Traceback (most recent call last)")
        weights = ""
        try:
            run = self._run(place, name)
            ledger = judged(run / "ledger", STEPS * BATCH)
            if wrong := {k: ledger[k] for k in ("missing", "repeated", "links_wrong", "blocks_wrong") if ledger[k]}:
                problems.append(f"the ledger: {wrong}")
            weights = digest(run / "model_latest")
            session = onnxruntime.InferenceSession(run.parent / "export" / "student.onnx")
            pixels = {each.name: np.full([d if isinstance(d, int) else 1 for d in each.shape], 0.5, np.float32)
                      for each in session.get_inputs()}  # fmt: skip
            if not all(np.isfinite(value).all() for value in session.run(None, pixels)):
                problems.append("the exported student answers no numbers")
        except (OSError, ValueError, KeyError) as error:
            problems.append(f"{type(error).__name__}: {error}")
        held = not problems and not counts.total()
        return {"held": held, "bit_equal": weights == quiet.weights, **counts, "problems": problems, "done": done}

    def _run(self, place: int, name: str) -> Path:
        return self.hosts[place].folder / name / "distill"

    def _text(self, place: int, name: str) -> str:
        path = self.hosts[place].folder / f"{name}.txt"
        return path.read_text(errors="replace") if path.exists() else ""

    def _start(self, place: int, name: str, task: str) -> subprocess.Popen[bytes]:
        host, proxy = self.hosts[place], self._proxies[place]
        spec = tiny_spec(Path("/tmp/inputs"), Path("/tmp") / name, STEPS, (1, 1), checkpoint_interval=EVERY)
        spec["cluster"]["mode"] = "local"
        change(spec, storage.changes(name))
        (host.folder / f"{name}.yaml").write_text(yaml.safe_dump(spec))
        library = host.folder / "faults.so"
        library.write_bytes(self._library.read_bytes())
        variables = {**storage.environment(proxy.url), "LD_PRELOAD": "/tmp/faults.so", "CHAOS_SWITCH": "/tmp/switch"}
        command = [sys.executable, "-m", "radioplat.cli", task, "-e", f"/tmp/{name}.yaml"]
        root = str(Path(__file__).parents[2])
        return host.start(*command, output=host.folder / f"{name}.txt", PYTHONPATH=root, **variables)


def _until(command: subprocess.Popen[bytes], condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + HANG_S
    while command.poll() is None and time.monotonic() < deadline and not condition():
        time.sleep(0.02)


def _wait(command: subprocess.Popen[bytes], counts: Counter[str]) -> int:
    try:
        return command.wait(HANG_S)
    except subprocess.TimeoutExpired:
        counts["hangs"] += 1
        os.killpg(command.pid, signal.SIGKILL)
        return command.wait()


def _ip(*arguments: str) -> None:
    _run("ip", *arguments)


def _run(*command: str) -> None:
    subprocess.run(command, check=True)
