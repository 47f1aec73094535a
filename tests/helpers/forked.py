"""Processes forked from one that has imported the heavy libraries: seconds of imports are paid once a test session."""

from __future__ import annotations

import atexit
import gc
import importlib.util
import multiprocessing
import os
import runpy
import signal
import socket
import sys
import tempfile
from collections.abc import Callable
from multiprocessing import forkserver
from pathlib import Path
from types import ModuleType
from typing import Any

PRELOADED = [
    "pytest",
    "radioplat.launch.driver",
    "radioplat.training.engine.deepspeed_engine",
    "radioplat.training.loop.trainer",
    "radioplat.tasks.plan.plan",
    "radioplat.cli.main",
]
CONTEXT = multiprocessing.get_context("forkserver")


def start_server() -> None:
    """Start the process that is forked, which imports :data:`PRELOADED`; nothing where it runs already."""
    CONTEXT.set_forkserver_preload(PRELOADED)
    forkserver.ensure_running()


class Forked:
    """A process that calls ``function(*arguments)``; the function must be at the top level of its file.

    Args:
        environment: all variables of the process; those of this one by default.
        output: the file that gets its standard output and error; a temporary one by default.
        new_session: it leads a session and a process group.

    Attributes:
        pid: of the process.
    """

    def __init__(
        self,
        function: Callable[..., None],
        *arguments: Any,
        environment: dict[str, str] | None = None,
        output: Path | None = None,
        new_session: bool = False,
    ) -> None:
        if output is None:
            self._file = tempfile.NamedTemporaryFile(prefix="forked-")  # removed with this object
            output = Path(self._file.name)
        self._output = output
        source, name = function.__code__.co_filename, function.__name__
        start_server()
        self._process = CONTEXT.Process(
            target=_call,
            args=(source, name, arguments, environment or dict(os.environ), str(output), new_session),
        )
        self._process.start()
        self.pid = self._process.pid

    @property
    def output(self) -> str:
        """What it has printed so far."""
        return self._output.read_text(errors="replace")

    def poll(self) -> int | None:
        """Its exit status, negative for a signal, or None while it runs."""
        return self._process.exitcode

    def wait(self, seconds: float) -> int | None:
        """Its exit status once it has ended, or None after ``seconds``."""
        self._process.join(seconds)
        return self.poll()

    def send_signal(self, number: int) -> None:
        """Send it a signal unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """End it and return once it has ended."""
        self.send_signal(signal.SIGKILL)
        self._process.join()


def run_script(path: str, *arguments: str) -> None:
    """Run a file as ``python path arguments``, with its exit handlers."""
    sys.argv = [path, *arguments]
    try:
        runpy.run_path(path, run_name="__main__")
    finally:
        atexit._run_exitfuncs()


def run_code(code: str, *arguments: str) -> None:
    """Run a program's text as ``python -c code arguments``."""
    sys.argv = ["-c", *arguments]
    exec(compile(code, "<string>", "exec"), {"__name__": "__main__"})


def start_ranks(function: Callable[..., None], *arguments: Any, world: int = 2, **environment: str) -> list[Forked]:
    """Start the ranks of one process group, each of which calls ``function(*arguments)``; a free port is in their
    environment, beside ``environment``."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    group = dict(WORLD_SIZE=world, LOCAL_WORLD_SIZE=world, MASTER_ADDR="127.0.0.1", MASTER_PORT=port, OMP_NUM_THREADS=1)
    ranks = []
    for rank in range(world):
        own = {name: str(value) for name, value in {**group, "RANK": rank, "LOCAL_RANK": rank, **environment}.items()}
        ranks.append(Forked(function, *arguments, environment={**os.environ, **own}))
    return ranks


def run_ranks(
    function: Callable[..., None], *arguments: Any, world: int = 2, seconds: float = 200, **environment: str
) -> list[str]:
    """Run the ranks of one process group to their end, as :func:`start_ranks` starts them.

    Returns:
        What each rank printed.

    Raises:
        AssertionError: one failed, or was not done after ``seconds``; with the end of what they printed.
    """
    ranks = start_ranks(function, *arguments, world=world, **environment)
    try:
        codes = [rank.wait(seconds) for rank in ranks]
        outputs = [rank.output for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert codes == [0] * world, f"{codes}\n" + "\n".join(text[-3000:] for text in outputs)
    return outputs


def load(path: str | Path) -> ModuleType:
    """The module in a file of tests, by its path; loaded once a process."""
    name = f"forked_{Path(path).stem}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        sys.modules[name] = module = importlib.util.module_from_spec(spec)  # dataclasses look there
        spec.loader.exec_module(module)
    return sys.modules[name]


def _call(
    source: str, name: str, arguments: tuple, environment: dict[str, str], output: str, new_session: bool
) -> None:
    gc.freeze()  # what was imported is not looked through again
    os.environ.clear()
    os.environ.update(environment)
    if new_session:
        os.setsid()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    handle = os.open(output, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    os.dup2(handle, 1)
    os.dup2(handle, 2)
    getattr(load(source), name)(*arguments)
