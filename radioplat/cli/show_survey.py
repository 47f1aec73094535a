"""``radioplat index`` in the terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import nullcontext

from radioplat.common import terminal
from radioplat.data.index.survey import SIDES, Survey, survey, survey_spec
from radioplat.data.scan.scan import scan_in_processes
from radioplat.launch.ray.scanning import scanner
from radioplat.spec.schema.cluster import ClusterMode


def run_and_show(folder: str, overrides: Sequence[str]) -> None:
    """Index ``folder``, with a bar, and print what is in it."""
    spec, _ = survey_spec(folder, overrides)
    # `auto` is for training: an index is made here unless a cluster is asked for.
    where = scanner(spec, scan_in_processes) if spec.cluster.mode is ClusterMode.ray else nullcontext(scan_in_processes)
    with terminal.counting("shards") as count, where as scan:
        found = survey(folder, overrides, scan=scan, progress=count)
    show(found)


def show(found: Survey) -> None:
    """Print a survey."""
    terminal.show_table(
        found.folder,
        ["", ""],
        [
            ["shards", str(found.shards)],
            ["images", f"{found.images} ({', '.join(f'{n} {f}' for f, n in found.formats.items())})"],
            ["bytes", terminal.size(found.image_bytes)],
            ["labelled", f"{found.labelled} images, {found.classes} classes"],
            ["captions", str(found.captions)],
            ["duplicates", f"{found.duplicates} among the {found.hashed} that carry a hash"],
            ["rejected by a filter", str(sum(found.rejected.values()))],
            ["unusable members", str(sum(found.faults.values()))],
        ],
    )
    rows = []
    for low, count in found.short_sides.items():
        place = SIDES.index(low)
        span = f"{low}-{SIDES[place + 1] - 1}" if place + 1 < len(SIDES) else f"{low} and more"
        rows.append([span, str(count), "#" * max(1, round(40 * count / found.images))])
    terminal.show_table("short side in pixels", ["pixels", "images", ""], rows)
    _show_reasons("rejected by a filter", found.rejected, found.rejected_examples)
    _show_reasons("unusable", found.faults, found.fault_examples)


def _show_reasons(title: str, counts: Mapping[str, int], examples: dict[str, list[str]]) -> None:
    if counts:
        rows = [[why, str(count), "\n".join(examples[why])] for why, count in sorted(counts.items())]
        terminal.show_table(title, ["reason", "count", "for example"], rows)
