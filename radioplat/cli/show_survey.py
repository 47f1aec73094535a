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
    """Index ``folder`` with a progress bar, and print a summary."""
    spec, _ = survey_spec(folder, overrides)
    # cluster.mode=auto applies to training; an index is built locally unless mode is ray.
    where = scanner(spec, scan_in_processes) if spec.cluster.mode is ClusterMode.ray else nullcontext(scan_in_processes)
    with terminal.counting("shards") as count, where as scan:
        result = survey(folder, overrides, scan=scan, progress=count)
    show(result)


def show(result: Survey) -> None:
    """Print a survey."""
    terminal.show_table(
        result.folder,
        ["", ""],
        [
            ["shards", str(result.shards)],
            ["images", f"{result.images} ({', '.join(f'{n} {f}' for f, n in result.formats.items())})"],
            ["bytes", terminal.size(result.image_bytes)],
            ["labelled", f"{result.labelled} images, {result.classes} classes"],
            ["captions", str(result.captions)],
            ["duplicates", f"{result.duplicates} among the {result.hashed} with a hash"],
            ["rejected by a filter", str(sum(result.rejected.values()))],
            ["unusable members", str(sum(result.faults.values()))],
        ],
    )
    rows = []
    for low, count in result.short_sides.items():
        place = SIDES.index(low)
        span = f"{low}-{SIDES[place + 1] - 1}" if place + 1 < len(SIDES) else f"{low} and more"
        rows.append([span, str(count), "#" * max(1, round(40 * count / result.images))])
    terminal.show_table("short side in pixels", ["pixels", "images", ""], rows)
    _show_reasons("rejected by a filter", result.rejected, result.rejected_examples)
    _show_reasons("unusable", result.faults, result.fault_examples)


def _show_reasons(title: str, counts: Mapping[str, int], examples: dict[str, list[str]]) -> None:
    if counts:
        rows = [[why, str(count), "\n".join(examples[why])] for why, count in sorted(counts.items())]
        terminal.show_table(title, ["reason", "count", "for example"], rows)
