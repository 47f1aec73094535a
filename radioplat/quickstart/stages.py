"""The stages of a quickstart: each that is complete, of the same spec, is not repeated by a later call."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from radioplat import __version__
from radioplat.common import terminal
from radioplat.spec.loading.load import to_yaml
from radioplat.spec.schema.root import Spec
from radioplat.tracking.results import write_atomic

FILE = "quickstart.json"


class Stages:
    """Stages of one results folder, in their order.

    ``quickstart.json`` has those that are complete. A stage runs again if it was made by another spec or version, if a
    file that it left is missing, or if a stage before it runs.
    """

    def __init__(self, spec: Spec) -> None:
        self._file = Path(spec.results_dir) / FILE
        self._made_by = hashlib.sha256(f"{__version__}\n{to_yaml(spec)}".encode()).hexdigest()
        self._complete = self._read()
        self._place = 0

    def run(self, name: str, files: Sequence[Path], action: Callable[[], object]) -> None:
        """Run a stage unless it is complete; print its name, and how long it took.

        Args:
            files: that it leaves.
        """
        terminal.say(f"[{name}]")
        begin, place = time.monotonic(), self._place
        self._place += 1
        if self._complete[place : place + 1] == [name] and all(file.exists() for file in files):
            terminal.say("    complete")
            return
        self._write(self._complete[:place])
        action()
        self._write([*self._complete, name])
        terminal.say(f"    {time.monotonic() - begin:.1f} s")

    def _read(self) -> list[str]:
        try:
            content = json.loads(self._file.read_text(encoding="utf-8"))
            return list(content["complete"]) if content["made_by"] == self._made_by else []
        except (OSError, ValueError, KeyError, TypeError):  # it is missing or damaged: every stage runs
            return []

    def _write(self, complete: list[str]) -> None:
        self._complete = complete
        write_atomic(self._file, json.dumps({"made_by": self._made_by, "complete": complete}, indent=1))
