"""Starts of radioplat's command in processes of their own, forked from one that has imported the heavy libraries."""

from __future__ import annotations

import multiprocessing
import os
import shutil
import signal
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from multiprocessing import forkserver
from pathlib import Path

HANG_S = 150.0
_CONTEXT = multiprocessing.get_context("forkserver")
_PRELOADED = ["radioplat.cli.main", "radioplat.launch.driver", "radioplat.training.loop.trainer"]
_PRELOADED += ["radioplat.training.engine.deepspeed_engine", "radioplat.tasks.plan.plan"]
_MAIN = Path(__file__).with_name("faults.c")


class Faults:
    """What `faults.c` does to the processes that have :attr:`environment`.

    Args:
        switch: the file that it reads; made new.
        folder: operations below it are counted.
    """

    _PLAN = struct.Struct("qqq232s")

    def __init__(self, switch: Path, folder: Path) -> None:
        self._switch, self._folder = switch, str(folder).encode()
        self.environment = {"CHAOS_SWITCH": str(switch)}
        switch.write_bytes(self._PLAN.pack(0, 0, 0, self._folder))

    def kill_at(self, operation: int) -> None:
        """Kill the process before its operation of this number from now on; 0: never."""
        self._put(0, struct.pack("qq", operation, 0))

    def shift_clock(self, seconds: float) -> None:
        """Move the clock, as read from now on, so far ahead of the machine's."""
        self._put(16, struct.pack("q", int(seconds * 1e9)))

    @property
    def operations(self) -> int:
        """How many were counted since :meth:`kill_at`."""
        return self._PLAN.unpack(self._switch.read_bytes())[1]

    def _put(self, offset: int, data: bytes) -> None:
        with open(self._switch, "r+b") as file:
            file.seek(offset)
            file.write(data)


def start_server(folder: Path) -> None:
    """Compile `faults.c` and start the process that is forked, with it preloaded.

    Raises:
        RuntimeError: there is no C compiler.
    """
    compiler = shutil.which("cc") or shutil.which("gcc")
    if compiler is None:
        raise RuntimeError("a C compiler is needed to make benchmarks/chaos/faults.c")
    library = folder / "faults.so"
    subprocess.run([compiler, "-shared", "-fPIC", "-O1", "-o", library, _MAIN, "-ldl"], check=True)
    _CONTEXT.set_forkserver_preload(_PRELOADED)
    os.environ["LD_PRELOAD"] = str(library)
    try:
        forkserver.ensure_running()
    finally:
        del os.environ["LD_PRELOAD"]


class Start:
    """One start of ``radioplat ARGUMENTS``; its output goes to the end of a file.

    Attributes:
        pid: of the process.
        status: its exit status, negative for a signal; None while it runs.
        hung: it was killed after :data:`HANG_S` seconds without an end.
        peak: the most memory that it was seen to hold, in bytes.
    """

    def __init__(self, arguments: Sequence[str], output: Path, environment: dict[str, str]) -> None:
        output.touch()
        self.output, self._begin = output, output.stat().st_size
        whole = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
        self._process = _CONTEXT.Process(target=_call, args=(list(arguments), str(output), whole))
        self._process.start()
        self.pid, self.hung, self.peak = self._process.pid, False, 0

    @property
    def status(self) -> int | None:
        return self._process.exitcode

    def until(self, condition: Callable[[], bool], seconds: float = HANG_S) -> bool:
        """Wait until the condition or the process's end; False if it ended first. After ``seconds`` it is killed."""
        deadline = time.monotonic() + seconds
        while self.status is None and time.monotonic() < deadline:
            self.peak = max(self.peak, _peak(self.pid))
            if condition():
                return True
            self._process.join(0.02)
        if self.status is None:
            self.hung = True
            self.kill()
        return False

    def wait(self, seconds: float = HANG_S) -> int:
        """Wait for its end, as :meth:`until`; return the exit status."""
        self.until(lambda: False, seconds)
        assert self.status is not None
        return self.status

    def kill(self, number: int = signal.SIGKILL) -> None:
        """Send it a signal; after SIGKILL, wait for its end."""
        if self.status is None:
            os.kill(self.pid, number)
        if number == signal.SIGKILL:
            self._process.join()

    @property
    def text(self) -> str:
        """What it has printed so far."""
        return self.output.read_bytes()[self._begin :].decode(errors="replace")


def _peak(pid: int) -> int:
    try:
        lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    except OSError:
        return 0
    return max((int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS:")), default=0)


def _call(arguments: list[str], output: str, environment: dict[str, str]) -> None:
    os.environ.clear()
    os.environ.update(environment)
    os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    sys.argv = ["radioplat", *arguments]
    from radioplat.cli.main import main

    sys.exit(main(arguments))
