"""``radioplat show data``: an HTML page of the first global batches that a run's workers would get."""

from __future__ import annotations

import io
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageDraw

from radioplat.common.cpu_threads import decode_threads
from radioplat.data.batch import Batch, View
from radioplat.data.images.decode import BadSample, decode_rgb
from radioplat.data.index.shard_index import ShardIndex
from radioplat.data.loading.fetch import Fetcher
from radioplat.data.loading.run_data import RunData, open_reader
from radioplat.data.loading.threads import load_micro_batches
from radioplat.design.run import Run, keep_data
from radioplat.launch.preflight.steps import prepare
from radioplat.spec.checks.tasks.training_task import command_of
from radioplat.spec.loading.load import to_yaml
from radioplat.spec.resolved.teacher import average_view
from radioplat.spec.schema.root import Spec
from radioplat.tracking.report.page import write_page
from radioplat.tracking.results import TaskFolder
from radioplat.tracking.task_log import log_task

THUMBNAIL, SHOWN = 240, 160  # pixels of the longer side, of the source and of a view
MOST = 256  # samples on one page
EXAMPLES = 3
_COLOURS = ("#2563c9", "#d9622b", "#2a8f5b", "#8a4fbf", "#b8860b", "#c2375a", "#33858d", "#6b6b6b")


def show_data(spec: Spec, batches: int = 2) -> Path:
    """Write ``results_dir/show/data.html`` with the first ``batches`` global batches of the run of ``spec``.

    Order, views and faults are computed by the same code as in the run.

    Raises:
        SpecError, DataError: as the run before it starts.
    """
    folder = TaskFolder(spec.results_dir, "show")
    return log_task(folder, "show", to_yaml(spec), lambda: _show(spec, folder.path, max(1, batches)))


def _show(spec: Spec, folder: Path, batches: int) -> Path:
    run, data = prepare(spec, command_of(spec), folder)
    keep_data(run, data)
    page = _Page(run, data.index)
    batches = min(batches, run.total_steps)
    schedule = run.micro_batch_schedule(1)
    micro_batches = [n for step in range(batches) for n in schedule.of_step(step)]
    reader = open_reader(*run.reader_arguments)
    loaded = load_micro_batches(reader, micro_batches, threads=decode_threads(spec.dataset.workers), prefetch=4)
    steps = [{"number": step, "batches": list(page.micro_batches(loaded))} for step in range(batches)]
    notes = [
        f"{batches} of {run.total_steps} global batches, {spec.global_batch_size} samples each in {run.micro_batches} "
        "micro-batches, before any worker starts",
        *(f"view {name}: {seen_by}" for name, seen_by in page.seen_by.items()),
        "outlines on a source show the area of each view; masked areas are tinted",
    ]
    if page.left_out:
        notes.append(f"{page.left_out} more samples are not drawn; the page has at most {MOST}")
    title = f"First batches of {run.task}"
    facts: dict[str, Any] = {"notes": notes, "rejects": _rejects(data), "steps": steps}
    return write_page(folder / "data.html", "radioplat.tasks.inspect", "show_data.html.j2", title=title, **facts)


class _Page:
    """Draws samples, up to :data:`MOST` of them."""

    def __init__(self, run: Run, index: ShardIndex) -> None:
        self._run, self._index = run, index
        self._fetch = Fetcher(index, run.spec.dataset.read_timeout_s, True, run.spec.dataset.storage_timeout_s)
        self._drawn = self.left_out = 0
        names = [view.name for view in run.views]
        self._colours = {name: _COLOURS[i % len(_COLOURS)] for i, name in enumerate(names)}
        viewers = {name: ["student"] if name == run.student_view else [] for name in names}
        for teacher in run.teachers:
            viewers[teacher.view].append(teacher.name)
        if run.spec.distill.mesa.weight:
            viewers[average_view(run.spec, run.spec.distill.mesa.view)].append("MESA")
        self.seen_by = {name: ", ".join(models) for name, models in viewers.items()}

    def micro_batches(self, loaded: Iterator[Batch]) -> Iterator[dict[str, Any]]:
        """Yield the drawn micro-batches of the next global batch of ``loaded``."""
        for number, batch in enumerate(islice(loaded, self._run.micro_batches)):
            count = min(len(batch), max(0, MOST - self._drawn))
            samples = [self._sample(batch, i) for i in range(count)]
            self._drawn += len(samples)
            self.left_out += len(batch) - len(samples)
            if samples:
                yield {"number": number, "samples": samples}

    def _sample(self, batch: Batch, i: int) -> dict[str, Any]:
        index, row = self._index, int(batch.sample_id[i])
        label = int(batch.label[i])
        named = index.texts([row], "label_name")[0]
        views = [] if batch.weight[i] == 0 else [self._view(name, view, i) for name, view in batch.views.items()]
        shard = index.shards.slice(int(index.shard[row]), 1).to_pylist()[0]
        return {
            "id": row,
            "position": int(batch.position[i]),
            "corpus": shard["root"],
            "shard": shard["name"],
            "key": index.key(row),
            "label": (f"{label} ({named})" if named else str(label)) if label >= 0 else "",
            "fault": batch.faults.get(row, ""),
            "size": f"{index.width[row]}x{index.height[row]}",
            "source": self._source(batch, i, row),
            "views": views,
        }

    def _view(self, name: str, view: View, i: int) -> dict[str, Any]:
        pixels = view.pixels[i].transpose(1, 2, 0)
        hidden = None if view.valid is None else ~view.valid[i]
        if hidden is not None and hidden.any():
            pixels = np.where(hidden[..., None], pixels // 2 + np.array([120, 0, 90], np.uint8), pixels)
        image = Image.fromarray(np.ascontiguousarray(pixels))
        height, width = pixels.shape[:2]
        image.thumbnail((SHOWN, SHOWN))
        return {
            "name": name,
            "size": f"{width}x{height}",
            "seen_by": self.seen_by.get(name, name),
            "colour": self._colours.get(name, _COLOURS[-1]),
            "masked": f"{hidden.mean():.0%}" if hidden is not None and hidden.any() else "",
            "picture": _png(image),
        }

    def _source(self, batch: Batch, i: int, row: int) -> bytes | None:
        """Draw the source with the outline of each view; None if it cannot be read."""
        try:
            source = decode_rgb(self._fetch.bytes_of(row), max_pixels=self._run.spec.dataset.max_pixels)
        except BadSample:
            return None
        image = Image.fromarray(source.rgb)
        image.thumbnail((THUMBNAIL, THUMBNAIL))
        scale = np.array([image.width / source.width, image.height / source.height])
        draw = ImageDraw.Draw(image)
        for name, view in batch.views.items() if batch.weight[i] else ():
            corners = outline(view.homography[i], *view.pixels.shape[2:]) * scale
            draw.polygon([tuple(corner) for corner in corners.tolist()], outline=self._colours.get(name), width=3)
        return _png(image)


def outline(homography: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return the corners of a view in its source: float64 ``[4, 2]``, x and y in source pixels, clockwise."""
    corners = np.array([[0, 0, 1], [width, 0, 1], [width, height, 1], [0, height, 1]], np.float64)
    mapped = corners @ homography.astype(np.float64).T
    return mapped[:, :2] / mapped[:, 2:]


def _rejects(data: RunData) -> list[tuple[str, int, str]]:
    """Return reason, count and examples of samples rejected by filters or unusable in the scan."""
    index, rejects = data.index, []
    for reason, count in zip(*np.unique(data.reasons[data.reasons != ""].astype(str), return_counts=True), strict=True):
        rows = np.flatnonzero(data.reasons == reason)[:EXAMPLES]
        names = (f"{index.key(r)} {index.width[r]}x{index.height[r]}" for r in rows.tolist())
        rejects.append((str(reason), int(count), ", ".join(names)))
    faults = index.faults.to_pylist()
    for reason in dict.fromkeys(fault["reason"] for fault in faults):
        those = [f for f in faults if f["reason"] == reason]
        names = (" ".join(filter(None, (Path(f["shard"]).name, f["key"], f["detail"]))) for f in those[:EXAMPLES])
        rejects.append((reason, len(those), ", ".join(names)))
    return sorted(rejects, key=lambda row: -row[1])


def _png(image: Image.Image) -> bytes:
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
