"""A detector's checkpoint, measured on the held-out split."""

from __future__ import annotations

import dataclasses
from pathlib import Path

from radioplat.common.cpu_threads import decode_threads, limit_torch_threads
from radioplat.data.detection.split import read_split
from radioplat.evaluation.detection.measure import DetectionResult, measure_detector
from radioplat.models.detectors.checkpoint import load_detector
from radioplat.spec.schema.root import Spec


def measure_checkpoint(
    spec: Spec, checkpoint: Path, ema: bool | None = None, device: str = "cpu"
) -> tuple[DetectionResult, str]:
    """Evaluate the detector of ``checkpoint`` on ``dataset.val_dataset``; return also the faults of its annotations.

    Raises:
        DataError: the split cannot be read, or has other classes than the detector.
        WeightsError: the checkpoint cannot be read.
    """
    detector = load_detector(checkpoint, "evaluate.checkpoint", ema).to(device)
    form, dataset = detector.architecture, spec.dataset
    names = form.class_names or dataset.classes
    split = read_split(dataset.val_dataset, names, "dataset.val_dataset")
    if spec.evaluate.max_images is not None:
        split = dataclasses.replace(split, pictures=split.pictures[: spec.evaluate.max_images])
    size = dataset.val_img_size or form.student.img_size
    batch = spec.evaluate.batch_size or dataset.val_batch_size or dataset.batch_size
    threads = decode_threads(dataset.workers)
    with limit_torch_threads(threads):
        result = measure_detector(
            lambda images: detector.detect(images.to(device)), split, size, batch, threads, dataset.max_pixels
        )
    return result, str(split.faults)
