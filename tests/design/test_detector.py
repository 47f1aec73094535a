"""Starting weights of a detector from its teacher's."""

from __future__ import annotations

import pytest
import torch

from radioplat.design.detector import detector_architecture, start_detector
from radioplat.errors import SpecError
from radioplat.models.detectors.base import Detector, DetectorArchitecture
from radioplat.models.detectors.checkpoint import save_detector
from radioplat.models.student.student import StudentArchitecture
from radioplat.spec.loading.load import load_spec

pytest.importorskip("transformers")

OPTIONS = dict(
    d_model=16, encoder_hidden_dim=16, encoder_ffn_dim=16, decoder_ffn_dim=16, decoder_layers=1, num_queries=8
)  # fmt: skip
BACKBONE = StudentArchitecture("resnet10t", img_size=64)
NAMES = ("a", "b")


def spec(**fields):
    detector = {"kind": "rtdetr", "options": OPTIONS}
    model = {"task": "detection", "backbone": {"type": "resnet10t"}, "detector": detector}
    return load_spec({"model": model, "dataset": {"img_size": 64, **fields.pop("dataset", {})}, "distill": fields})


def test_the_encoder_is_the_teachers_where_it_fits(tmp_path):
    """Teacher and student have maps of other widths, so the projections of these stay the student's own."""
    torch.manual_seed(1)
    other = StudentArchitecture("resnet10t", {"channels": (16, 24, 32, 48)}, img_size=64)
    detector = Detector(DetectorArchitecture(other, 2, "rtdetr", OPTIONS))
    save_detector(detector, tmp_path)
    teacher, architecture = detector.state_dict(), DetectorArchitecture(BACKBONE, 2, "rtdetr", OPTIONS)
    taught = {"teacher": {"pretrained_teacher_model_path": str(tmp_path)}, "encoder_from_teacher": True}
    plain, started = (start_detector(spec(**each), architecture, "distill").state_dict() for each in ({}, taught))
    weights = [name for name in started if name.startswith("detr.model.encoder.") and started[name].ndim > 1]
    assert weights and all(torch.equal(started[name], teacher[name]) for name in weights)
    assert not any(torch.equal(started[name], plain[name]) for name in weights)
    for part in ("encoder_input_proj.0.0", "decoder.layers.0.encoder_attn.value_proj"):
        name = f"detr.model.{part}.weight"
        assert torch.equal(started[name], plain[name]) and not torch.equal(started[name].mean(), teacher[name].mean())


def test_further_classes_come_after_those_of_the_images():
    found = detector_architecture(spec(dataset={"num_classes": 5}), BACKBONE, NAMES)
    assert (found.num_classes, found.class_names) == (5, NAMES)
    assert detector_architecture(spec(), BACKBONE, NAMES).num_classes == 2
    with pytest.raises(SpecError, match="dataset.num_classes: the training images have 2 classes, not 1"):
        detector_architecture(spec(dataset={"num_classes": 1}), BACKBONE, NAMES)
