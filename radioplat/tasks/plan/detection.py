"""What `plan` says of a detector that is trained."""

from __future__ import annotations

from radioplat.data.detection.split import read_split
from radioplat.design.detector import detector_architecture, detector_widths
from radioplat.design.detector_teachers import told_problems
from radioplat.design.models import Models
from radioplat.errors import RadioplatError
from radioplat.models.detectors.base import Detector
from radioplat.spec.schema.root import Spec
from radioplat.tasks.plan.findings import Plan


def detector_found(spec: Spec, models: Models, result: Plan) -> int | None:
    """Annotations, the detector, and what binds it to its teachers; returns its parameters, if it can be built."""
    held_out = spec.dataset.val_dataset
    try:
        found = read_split(spec.dataset.train_dataset, spec.dataset.classes, "dataset.train_dataset")
        result.facts["objects"] = str(found)
        if held_out.images_dir or held_out.tar_data_sources:
            split = read_split(held_out, found.classes, "dataset.val_dataset")
            result.facts["held-out objects"] = str(split)
        form = detector_architecture(spec, models.architecture, found.classes)
        if models.teachers:
            result.problems += told_problems(spec)
        detector_widths(spec, form, models.teachers, models.infos)
        return sum(parameter.numel() for parameter in Detector(form).parameters())
    except RadioplatError as error:
        result.problems += error.problems
    return None
