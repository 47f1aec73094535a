"""The result of a migration from another program."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from radioplat.errors import SpecError
from radioplat.tracking.results import write_atomic


@dataclass(frozen=True)
class WrittenSpec:
    """A spec as YAML, and the fields of the other program that have no effect or no counterpart, with the reasons."""

    text: str
    notes: dict[str, str] = field(default_factory=dict)

    def write(self, path: Path) -> None:
        """Write the text to a new file.

        Raises:
            SpecError: the file exists.
        """
        if path.exists():
            raise SpecError(f"{path} exists", where=str(path), hint="Name another file, or remove it.")
        write_atomic(path, self.text)
