"""A page of one step: its samples by their part of the loss, its terms, the gradients of its layers."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from radioplat.data.index.shard_index import ShardIndex
from radioplat.data.loading.run_data import RunData
from radioplat.tasks.replay.recorded_step import RecordedStep
from radioplat.tracking.report.page import write_page
from radioplat.tracking.results import write_atomic

PAGE, FACTS = "step.html", "step.json"
MOST, LAYERS, SHOWN = 128, 20, 160  # samples and layers on the page; pixels of a picture's longer side


def write_step_page(folder: Path, recorded: RecordedStep, before: dict[str, float], after: dict[str, float]) -> Path:
    """Write ``step.html`` and ``step.json`` beside the files of the step's micro-batches; return the page.

    Args:
        folder: with the files of :class:`radioplat.training.accounting.examine_step.ExamineStep`.
        before, after: the loss and its terms, as recorded and as computed again.
    """
    spec = recorded.spec
    index = RunData.load(recorded.folder / "data", spec.dataset.train_dataset).index
    per_step = spec.global_batch_size // spec.dataset.batch_size
    samples = [each for path in sorted(folder.glob("micro_batch_*.npz")) for each in _samples(path, index, per_step)]
    samples.sort(key=lambda sample: -sample["loss"])
    gradients = _gradients(folder)
    facts = {
        "step": recorded.step,
        "run": str(recorded.folder),
        "recorded": before,
        "replayed": after,
        "gradients": gradients,
        "samples": [{name: value for name, value in sample.items() if name != "pictures"} for sample in samples],
    }
    write_atomic(folder / FACTS, json.dumps(facts, indent=1))
    whole = after.get("loss", 0.0)
    for sample in samples:
        sample["share"] = f"{sample['loss'] / whole:.2%}" if whole else ""
    return write_page(
        folder / PAGE,
        "radioplat.tasks.replay",
        "step.html.j2",
        title=f"Step {recorded.step} of {recorded.folder.name}",
        notes=[
            f"computed again from {recorded.checkpoint.name if recorded.checkpoint else 'the beginning'}",
            f"{len(samples)} samples, the largest parts of the loss first; even parts would be "
            f"{1 / spec.global_batch_size:.2%} each",
            "the parts of all samples and terms add up to the loss, without what belongs to no sample (bindings, MESA, "
            "penalties on weights)",
            f"{FACTS} has the same as numbers; micro_batch_*.npz pixels, targets and terms",
        ],
        terms=[(name, before.get(name), value) for name, value in after.items()],
        samples=samples[:MOST],
        left_out=max(0, len(samples) - MOST),
        layers=sorted(gradients.items(), key=lambda pair: -pair[1])[:LAYERS],
        count=len(gradients),
    )


def _samples(path: Path, index: ShardIndex, per_step: int) -> list[dict[str, Any]]:
    with np.load(path) as file:
        arrays = {name: file[name] for name in file.files}
    terms = {name.removeprefix("term/"): values / per_step for name, values in arrays.items() if name[:5] == "term/"}
    views = {name.removeprefix("view/"): pixels for name, pixels in arrays.items() if name[:5] == "view/"}
    samples = []
    for i, row in enumerate(arrays["sample_id"].tolist()):
        shard = index.shards.slice(int(index.shard[row]), 1).to_pylist()[0]
        own = {name: float(values[i]) for name, values in terms.items()}
        samples.append(
            {
                "id": row,
                "position": int(arrays["position"][i]),
                "micro_batch": int(path.stem.rpartition("_")[2]),
                "corpus": shard["root"],
                "shard": shard["name"],
                "key": index.key(row),
                "weight": float(arrays["weight"][i]),
                "loss": sum(own.values()),
                "terms": own,
                "pictures": [(name, _png(pixels[i])) for name, pixels in views.items()],
            }
        )
    return samples


def _gradients(folder: Path) -> dict[str, float]:
    """Return the norm of each layer's gradient over the ranks' files: the root of the sum of squares."""
    squares: dict[str, float] = {}
    for path in sorted(folder.glob("gradients_*.json")):
        for layer, norm in json.loads(path.read_text(encoding="utf-8")).items():
            squares[layer] = squares.get(layer, 0.0) + norm**2
    return {layer: square**0.5 for layer, square in squares.items()}


def _png(pixels: np.ndarray) -> bytes:
    image = Image.fromarray(np.ascontiguousarray(pixels.transpose(1, 2, 0)))
    image.thumbnail((SHOWN, SHOWN))
    buffer = io.BytesIO()
    image.save(buffer, "PNG")
    return buffer.getvalue()
