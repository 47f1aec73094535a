"""``radioplat index`` in the terminal."""

from __future__ import annotations

from radioplat import terminal
from radioplat.data.survey import SIDES, Survey


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
            ["duplicates", str(found.duplicates)],
            ["rejected by the filter", _counts(found.rejected)],
            ["unusable", _counts(found.faults)],
        ],
    )
    rows = []
    for low, count in found.short_sides.items():
        place = SIDES.index(low)
        span = f"{low}-{SIDES[place + 1] - 1}" if place + 1 < len(SIDES) else f"{low} and more"
        rows.append([span, str(count), "#" * max(1, round(40 * count / found.images))])
    terminal.show_table("short side in pixels", ["pixels", "images", ""], rows)


def _counts(counts: dict[str, int]) -> str:
    return ", ".join(f"{count} {name}" for name, count in counts.items()) or "none"
