"""``radioplat demo``: the demonstration of a checkout, `benchmarks/demo.py`, as a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from radioplat.errors import RadioplatError

_ROOT = Path(__file__).resolve().parents[2]
_PROGRAM = Path("benchmarks", "demo.py")


def demonstrate(options: Mapping[str, str | None]) -> int:
    """Run the demonstration; return its exit status.

    Args:
        options: of `benchmarks/demo.py`, by name; None where it is not given.

    Raises:
        RadioplatError: this is no checkout.
    """
    if not (_ROOT / _PROGRAM).exists():
        raise RadioplatError(
            "the demonstration is not in the installed package: its programs are in the repository, not in the wheel",
            hint="Clone the repository, and run `make demo` there.",
        )
    given = [f"--{name}={value}" for name, value in options.items() if value is not None]
    roots = os.pathsep.join(filter(None, [str(_ROOT), os.environ.get("PYTHONPATH")]))
    command = [sys.executable, "-m", "benchmarks.demo", *given]
    started: list[subprocess.Popen] = []

    def end(*_: object) -> None:
        """End the demonstration, too."""
        for each in started:
            each.terminate()

    before = signal.signal(signal.SIGTERM, end)
    try:
        with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": roots}) as process:
            started.append(process)
            while True:
                try:
                    return process.wait()
                except KeyboardInterrupt:  # the terminal interrupts both, and the demonstration says how it goes on
                    continue
    finally:
        signal.signal(signal.SIGTERM, before)
