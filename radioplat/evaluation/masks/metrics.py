"""The metrics ``segmentation`` and ``change``: decoders on the maps of every model, with their own images."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar

from torch import Tensor

from radioplat.errors import DataError, Problem, RadioplatError, problems_of
from radioplat.evaluation.masks.mask_files import Samples, find_samples, left_out
from radioplat.evaluation.masks.mask_reader import Masked, MaskReader
from radioplat.evaluation.masks.picture import answers_panel
from radioplat.evaluation.masks.segmentation import ChangeResult, Probe, SegmentationResult, change_result, segment
from radioplat.evaluation.metrics.metric import Inputs, Metric, percentage
from radioplat.evaluation.models.evaluated_model import EvaluatedModel
from radioplat.spec.schema.evaluate import EvaluateConfig, MaskedConfig
from radioplat.spec.schema.root import Spec
from radioplat.tracking.table import Table

_CLASSES = 8  # with a column in the table; results.json has all classes


class Segmentation(Metric):
    """Metric ``segmentation``: a :class:`SegmentationResult` for each model."""

    name, figure, score = "segmentation", "miou", "miou"
    switch = "segmentation.wanted"
    option = ("segmentation", "segmentation.images_dir, masks_dir and num_classes")
    caption: ClassVar[str] = "Classes of pixels"

    @classmethod
    def problems(cls, spec: Spec, inputs: Inputs) -> Iterator[Problem]:
        """Yield the reasons why the metric cannot be measured."""
        yield from problems_of(cls._samples, spec)

    @classmethod
    def facts(cls, spec: Spec) -> Iterator[str]:
        """Yield a line for ``plan`` with the numbers of masks, and of samples that are left out."""
        try:
            samples = cls._samples(spec)
        except RadioplatError:
            return  # `problems` yields it
        counts = f"{len(samples.training)} training and {len(samples.held_out)} held-out masks"
        omitted = f"; left out {left_out(samples.faults)}" if samples.faults.counts else ""
        yield f"{cls.name}: {counts}{omitted}"

    def result(self) -> dict[str, SegmentationResult]:
        """Train and score a decoder for each model; return the scores by model.

        Raises:
            DataError: there are too few usable samples.
        """
        return {name: self._of_probe(probe) for name, probe in self._probes().items()}

    @classmethod
    def tables(cls, result: dict[str, Any]) -> list[Table]:
        """Return the result as tables of the report."""
        rows = [[name, *map(percentage, (r.miou, r.accuracy, *r.iou[:_CLASSES]))] for name, r in result.items()]
        classes = len(next(iter(result.values())).iou) if rows else 0
        columns = ["model", "mIoU", "pixels right", *(f"IoU {c}" for c in range(min(classes, _CLASSES)))]
        return [Table(columns, rows, _title("Segmentation", result), _note(result))]

    @classmethod
    def _config(cls, config: EvaluateConfig) -> MaskedConfig:
        return getattr(config, cls.name)

    @classmethod
    def _samples(cls, spec: Spec) -> Samples:
        return find_samples(cls._config(spec.evaluate), f"evaluate.{cls.name}")

    def _map(self, model: EvaluatedModel, batch: Masked) -> Tensor:
        """Compute the map ``[B, h, w, D]`` that the decoder reads."""
        return model.encode(batch.pixels[0][model.size]).of("spatial")

    def _of_probe(self, probe: Probe) -> SegmentationResult:
        return probe.result()

    def _probes(self) -> dict[str, Probe]:
        setup, spec = self.setup, self.setup.spec
        config, where, seed = self._config(spec.evaluate), f"evaluate.{self.name}", spec.dataset.val_dataset.seed
        samples, models = self._samples(spec), setup.at_usual_size
        sizes = {model.size for model in models.values()}

        def reader(views: int) -> MaskReader:
            augmentation, limit = spec.dataset.augmentation, spec.dataset.max_pixels
            common = (setup.batch_size, samples.faults, setup.threads, limit)
            return MaskReader(config, sizes, *common, augmentation, views, seed)

        training, held_out = reader(config.views).read(samples.training), reader(1).read(samples.held_out)
        encoders = {name: partial(self._map, model) for name, model in models.items()}
        maps, shown = len(samples.training) * config.views, spec.evaluate.pictures
        try:
            probes, answers = segment(encoders, training, held_out, maps, config, where, seed, setup.device, shown)
        except DataError as error:
            if not samples.faults.counts:
                raise
            hint = f"Left out: {left_out(samples.faults)}"
            raise DataError(*(replace(problem, hint=hint) for problem in error.problems)) from None
        if samples.faults.counts:
            self.notes.append(f"{self.name}: left out {left_out(samples.faults)}")
        if answers is not None:
            method = "by a decoder on each frozen map. Black is class 0, grey has no class."
            self.pictures.append((f"{self.caption}, {method}", answers_panel(answers)))
        return probes


class Change(Segmentation):
    """Metric ``change``: a :class:`ChangeResult` for each model, by a decoder on the difference of two images' maps."""

    name, figure, score = "change", "change_f1", "change_f1"
    switch = "change.wanted"
    option = ("change", "change.before_dir, after_dir and masks_dir")
    caption = "What has changed between two images"

    @classmethod
    def tables(cls, result: dict[str, Any]) -> list[Table]:
        """Return the result as tables of the report."""
        scores = ("change_f1", "change_precision", "change_recall", "change_iou", "miou", "accuracy")
        rows = [[name, *(percentage(getattr(r, score)) for score in scores)] for name, r in result.items()]
        columns = ["model", "F1", "precision", "recall", "IoU", "mIoU", "pixels right"]
        note = _note(result) + " F1, precision, recall and IoU are those of change."
        return [Table(columns, rows, _title("Change", result), note)]

    def _map(self, model: EvaluatedModel, batch: Masked) -> Tensor:
        before, after = (model.encode(pixels[model.size]).of("spatial") for pixels in batch.pixels)
        return (after - before).abs()

    def _of_probe(self, probe: Probe) -> ChangeResult:
        return change_result(probe)


def _title(task: str, result: Mapping[str, SegmentationResult]) -> str:
    decoder = next((r.decoder for r in result.values()), "linear")
    return f"{task} by a {decoder} {'layer' if decoder == 'linear' else 'decoder'} on frozen maps"


def _note(result: Mapping[str, SegmentationResult]) -> str:
    if not result:
        return ""
    first = next(iter(result.values()))
    present = sum(value is not None for value in first.iou)
    counts = f"{first.images} held-out images, {present} of {len(first.iou)} classes in them or in answers; fitted on "
    decays = [f"{name} {r.weight_decay:g}" for name, r in result.items() if r.weight_decay is not None]
    return f"{counts}{first.trained_on}." + (f" Weight decays: {', '.join(decays)}." if decays else "")
