"""What the terminal shows of the demonstration: one screen, or plain lines; and its recording as SVG."""

from __future__ import annotations

import io
import re
import sys
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from rich.console import Console, Group, RenderableType
from rich.live import Live
from rich.panel import Panel
from rich.table import Table
from rich.text import Text

from benchmarks.demonstration.progress import Progress
from benchmarks.demonstration.runs import ALONE, DISTURBED

WIDTH, HEIGHT = 96, 24  # of the recording, characters
FRAMES, FRAME_S = 14, 1.2  # of the recording: most of them, and how long each is shown
_PLAIN_S = 10.0  # between two lines where there is no terminal


class Screen:
    """Shows a :class:`Progress`; use it as a context manager."""

    def __init__(self, progress: Progress) -> None:
        self.progress, self.begin = progress, time.monotonic()
        self.stage = ""
        self._frames: list[tuple[float, RenderableType]] = []
        self._console = Console(stderr=True)
        self._live = Live(console=self._console, auto_refresh=False, screen=False, transient=False)
        self._plain_at = 0.0

    @contextmanager
    def shown(self) -> Iterator[Screen]:
        """Show it during the block."""
        if not self._console.is_terminal:
            yield self
            return
        with self._live:
            yield self

    def update(self) -> None:
        """Draw what the progress says now."""
        drawn = self.drawn()
        self._frames.append((time.monotonic(), drawn))
        if self._console.is_terminal:
            self._live.update(drawn, refresh=True)
        elif time.monotonic() - self._plain_at > _PLAIN_S:
            self._plain_at = time.monotonic()
            self.say(self.line())

    def say(self, line: str) -> None:
        """Print a line above the screen, or as a line."""
        if self._console.is_terminal:
            self._live.console.print(line, markup=False, highlight=False)
        else:
            print(line, file=sys.stderr, flush=True)

    def line(self) -> str:
        """Return the progress in one line."""
        p = self.progress
        steps = [f"{name} {p.step(ALONE, name)}/{p.step(DISTURBED, name)}" for name in p.options.names]
        done = Counter(kill.kind for kill in p.kills)
        bad = sum(each["missing"] + each["repeated"] for each in p.ledgers.values())
        kinds = ", ".join(f"{count} {kind}" for kind, count in sorted(done.items()))
        return (
            f"{time.monotonic() - self.begin:4.0f} s  {self.stage}; steps alone/disturbed of {p.options.steps}: "
            f"{', '.join(steps)}; workers {p.alive.get('worker', 0)}; kills {len(p.kills)} of {p.options.kills}"
            f"{f' ({kinds})' if kinds else ''}; samples missing or twice: {bad}"
        )

    def drawn(self) -> RenderableType:
        """Return the screen."""
        p = self.progress
        students = Table(expand=True, box=None, padding=(0, 1))
        students.add_column("student")
        for column in ("alone", "loss", "disturbed", "loss there", "same", "missing", "twice"):
            students.add_column(column, justify="right")
        for name in p.options.names:
            mine = dict(p.losses.get(ALONE, {}).get(name, []))
            theirs = p.losses.get(DISTURBED, {}).get(name, [])
            both = [(mine[step], loss) for step, loss in theirs if step in mine]
            same = "" if not both else "yes" if all(a == b for a, b in both) else "[red]NO[/]"
            ledger = p.ledgers.get(name, {})
            students.add_row(
                name,
                f"{p.step(ALONE, name)} of {p.options.steps}",
                f"{mine[max(mine)]:.5f}" if mine else "",
                f"{p.step(DISTURBED, name)} of {p.options.steps}",
                f"{theirs[-1][1]:.5f}" if theirs else "",
                same,
                str(ledger.get("missing", "")),
                str(ledger.get("repeated", "")),
            )
        alive = ", ".join(f"{p.alive.get(kind, 0)} {kind}s" for kind in ("worker", "teacher", "reader", "raylet"))
        worlds = "".join(str(event.world_size) for event in p.attempts if event.event == "start")[-60:]
        facts = Text.assemble(
            ("alive      ", "dim"), alive, "\n",
            ("workers    ", "dim"), f"{worlds}  (of each start so far)", "\n",
            ("kills      ", "dim"), ("#" * len(p.kills), "red"), f" {len(p.kills)} of {p.options.kills}",
        )  # fmt: skip
        last = [
            Text(f"{datetime.fromtimestamp(kill.time):%H:%M:%S}  SIGKILL  {kill.kind:8} {kill.pid}  {kill.program}")
            for kill in p.kills[-5:]
        ]
        title = f"radioplat demo   {time.monotonic() - self.begin:.0f} s   {self.stage}"
        return Panel(
            Group(students, Text(), facts, Text(), *last),
            title=title,
            title_align="left",
            width=WIDTH,
            height=HEIGHT - 6,
        )

    def record(self, path: Path, end: RenderableType) -> Path:
        """Write frames of what was shown, and ``end`` as the last, as one SVG that plays them."""
        chosen = [frame for _, frame in self._frames]
        step = max(1, len(chosen) // (FRAMES - 1))
        chosen = [*chosen[::step][: FRAMES - 1], end]
        return animate(path, chosen)


def animate(path: Path, frames: list[RenderableType]) -> Path:
    """Write frames as one SVG, each of which is shown in turn, the last one longer."""
    pieces, inner, head = [], [], ""
    for number, frame in enumerate(frames):
        console = Console(record=True, width=WIDTH, height=HEIGHT, file=io.StringIO(), force_terminal=True)
        console.print(frame)
        console.print("\n" * (HEIGHT - 1 - sum(1 for _ in console.export_text(clear=False).splitlines())), end="")
        svg = console.export_svg(title="make demo", unique_id=f"f{number}")
        head = head or re.match(r"<svg[^>]*>", svg)[0]  # type: ignore[index]  # rich begins with it
        inner.append(svg)
    count = len(frames) + 3  # the last is shown four times as long
    for number, svg in enumerate(inner):
        first, last = 100 * number / count, 100 * (number + 1 if number < len(frames) - 1 else count) / count
        name = f"k{number}"
        pieces.append(
            f"<style>@keyframes {name} {{0%,{max(0.0, first - 0.01):.2f}% {{visibility:hidden}} "
            f"{first:.2f}%,{last - 0.02:.2f}% {{visibility:visible}} {last:.2f}%,100% {{visibility:hidden}}}}"
            f" #{name} {{animation:{name} {count * FRAME_S:.1f}s step-end infinite}}</style>"
            f'<g id="{name}">{svg}</g>'
        )
    path.write_text(f"{head}{''.join(pieces)}</svg>\n", encoding="utf-8")
    return path
