"""Segmentation and change of an evaluation: decoders on the maps of every model under measurement."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import torch

from radioplat.data.detection.boxes import Faults
from radioplat.data.loading.split_images import Images
from radioplat.errors import DataError
from radioplat.evaluation.masks.segmentation import MapOf, Probe, change_result, segment
from radioplat.evaluation.masks.sources import find_samples, left_out
from radioplat.evaluation.masks.views import Masked, MaskReader
from radioplat.evaluation.measure.findings import Findings
from radioplat.evaluation.models.evaluated_model import EvaluatedModel
from radioplat.spec.schema.evaluate import MaskedConfig
from radioplat.spec.schema.root import Spec


def decode_maps(spec: Spec, models: dict[str, EvaluatedModel], images: Images, device: str, found: Findings) -> None:
    """Add to ``found`` what ``evaluate.segmentation`` and ``evaluate.change`` ask for.

    Args:
        images: tells the size of a batch, and the threads.

    Raises:
        DataError: there are too few samples that can be used.
    """
    judged = {name: model for name, model in models.items() if model.resolution_of is None}
    config = spec.evaluate
    if config.segmentation.wanted:
        encoders = {name: _map_of(model) for name, model in judged.items()}
        probes = _decode(spec, judged, encoders, config.segmentation, "segmentation", images, device, found)
        found.segmentation = {name: probe.result() for name, probe in probes.items()}
    if config.change.wanted:
        encoders = {name: _difference_of(model) for name, model in judged.items()}
        probes = _decode(spec, judged, encoders, config.change, "change", images, device, found)
        found.change = {name: change_result(probe) for name, probe in probes.items()}


def _decode(
    spec: Spec,
    models: dict[str, EvaluatedModel],
    encoders: dict[str, MapOf],
    config: MaskedConfig,
    name: str,
    images: Images,
    device: str,
    found: Findings,
) -> dict[str, Probe]:
    where, seed = f"evaluate.{name}", spec.dataset.val_dataset.seed
    samples = find_samples(config, where)
    sizes = {model.size for model in models.values()}

    def reader(views: int) -> MaskReader:
        augmentation, limit = spec.dataset.augmentation, spec.dataset.max_pixels
        common = (images.batch_size, samples.faults, images.threads, limit)
        return MaskReader(config, sizes, *common, augmentation, views, seed)

    training, held_out = reader(config.views).read(samples.training), reader(1).read(samples.held_out)
    maps = len(samples.training) * config.views
    shown = spec.evaluate.pictures
    try:
        probes, answers = segment(encoders, training, held_out, maps, config, where, seed, device, shown)
    except DataError as error:
        if not samples.faults.counts:
            raise
        hint = f"Left out: {left_out(samples.faults)}"
        raise DataError(*(replace(problem, hint=hint) for problem in error.problems)) from None
    found.absent += _told(name, samples.faults)
    if answers is not None:
        found.answers[name] = answers
    return probes


def _told(name: str, faults: Faults) -> list[str]:
    """What was left out, in a line."""
    return [f"{name}: left out {left_out(faults)}"] if faults.counts else []


def _map_of(model: EvaluatedModel) -> Callable[[Masked], torch.Tensor]:
    def map_of(batch: Masked) -> torch.Tensor:
        """``[B, h, w, D]`` of the images at the model's size."""
        return _map(model, batch.pixels[0][model.size])

    return map_of


def _difference_of(model: EvaluatedModel) -> Callable[[Masked], torch.Tensor]:
    def difference_of(batch: Masked) -> torch.Tensor:
        """``[B, h, w, D]``: how far the two maps of each pair lie apart, feature by feature."""
        before, after = (_map(model, pixels[model.size]) for pixels in batch.pixels)
        return (after - before).abs()

    return difference_of


def _map(model: EvaluatedModel, pixels: torch.Tensor) -> torch.Tensor:
    spatial = model.encode(pixels).spatial
    assert spatial is not None
    return spatial
