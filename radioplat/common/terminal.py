"""Terminal output: lines, tables, errors, progress bars.

rich is imported where it is used: it takes longer than everything else that a shell's completion needs.
"""

from __future__ import annotations

import contextlib
import re
import sys
import time
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from radioplat.common.redact import redact
from radioplat.errors import RadioplatError

if TYPE_CHECKING:
    from rich.console import Console

_LONGEST_FIGURE = 40  # characters; longer cells are prose, and their column begins at the left
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def show_error(error: RadioplatError) -> None:
    """Print one line per problem on stderr, with secrets masked."""
    from rich.console import Console
    from rich.markup import escape

    console = Console(stderr=True, soft_wrap=True, highlight=False)
    for problem in error.problems:
        console.print(f"[bold red]error[/] {escape(shown(redact(str(problem))))}")


def show_table(title: str, columns: list[str], rows: list[list[str]], note: str = "") -> None:
    """Print a table on stdout."""
    from rich.markup import escape
    from rich.table import Table

    table = Table(title=shown(title), title_justify="left", caption=note or None, caption_justify="left")
    for i, column in enumerate(columns):
        prose = any(len(row[i]) > _LONGEST_FIGURE for row in rows)
        table.add_column(column, justify="left" if i == 0 or prose else "right", overflow="fold")
    for row in rows:
        table.add_row(*(escape(shown(cell)) for cell in row))
    _stdout().print(table)


def say(line: str) -> None:
    """Print a line on stdout, without breaks: it may have a path or a command to copy."""
    _stdout().print(shown(line), markup=False, soft_wrap=True)


def note(line: str) -> None:
    """Print a line on stderr."""
    print(shown(line), file=sys.stderr, flush=True)


@contextlib.contextmanager
def counting(label: str) -> Iterator[Callable[[int, int], None]]:
    """Show progress on stderr, as a bar or, without a terminal, as a line every ten seconds.

    Yields:
        A function ``count(done, total)`` to call on progress.
    """
    if not sys.stderr.isatty():
        last_line = [time.monotonic()]

        def line(done: int, total: int) -> None:
            """Print a line if ten seconds have passed, or at the end of a long count."""
            if time.monotonic() - last_line[0] >= 10 or done == total > 1000:
                last_line[0] = time.monotonic()
                note(f"{label}: {done} of {total}")

        yield line
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(label, total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)


def shown(text: str) -> str:
    """Return ``text`` with its control characters, but for line ends and tabs, written as ``\\x1b``.

    Names of files, images and classes come from outside: a terminal would obey them.
    """
    return _CONTROL.sub(lambda control: f"\\x{ord(control[0]):02x}", text)


def size(count: float) -> str:
    """Return a number of bytes as text: ``12.3 MB``."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.3g} TB"


def _stdout() -> Console:
    from rich.console import Console

    # A pipe has no width; without one, tables would be folded to 80 columns.
    return Console(highlight=False, soft_wrap=False, width=None if sys.stdout.isatty() else 140)
