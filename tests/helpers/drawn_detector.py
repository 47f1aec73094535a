"""A small detector whose boxes differ from image to image without training."""

from __future__ import annotations

import torch

from benchmarks.composites import CLASSES
from radioplat.models.detectors.base import Detector, DetectorArchitecture
from radioplat.models.student.student import StudentArchitecture

SIZE = 64
OPTIONS = dict(
    d_model=16, encoder_ffn_dim=16, decoder_ffn_dim=16, encoder_layers=1, decoder_layers=1, num_queries=12,
    encoder_attention_heads=2, decoder_attention_heads=2, num_denoising=4, num_feature_levels=3,
)  # fmt: skip


def drawn_detector() -> Detector:
    """A detector whose heads are drawn so wide that its boxes and classes differ from image to image."""
    torch.manual_seed(0)
    student = StudentArchitecture("resnet10t", img_size=SIZE)
    detector = Detector(DetectorArchitecture(student, len(CLASSES), "dino", OPTIONS, class_names=CLASSES)).eval()
    for head in (detector.detr.enc_score_head, *detector.detr.decoder.class_embed):
        torch.nn.init.normal_(head.weight, std=0.5)
    for head in (detector.detr.enc_bbox_head, *detector.detr.decoder.bbox_embed):
        torch.nn.init.normal_(head.layers[-1].weight, std=0.2)
    return detector
