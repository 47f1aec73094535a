"""Post-training quantization of a detector: its backbone as a student's, and the encoder and decoder on it."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import nn

from radioplat.compression.quantization.backends.registry import borrow_scales
from radioplat.compression.quantization.calibrate import calibrate
from radioplat.compression.quantization.equalize import equalize
from radioplat.compression.quantization.placement import place
from radioplat.compression.quantization.student import Quantized, likeness, load_folded, used_layers
from radioplat.data.loading.sample_images import require_pictures
from radioplat.errors import SpecError
from radioplat.models.detectors.base import BACKBONE, Detector
from radioplat.models.modifiers.fold_batchnorm import fold_pairs, following_norms
from radioplat.spec.schema.quantize import QuantizeConfig


@torch.no_grad()
def quantize_detector(
    detector: Detector, asked: QuantizeConfig, batches: list[torch.Tensor], device: torch.device | str = "cpu"
) -> Quantized[Detector]:
    """A quantized copy of ``detector``, in fp32; arguments and errors as those of
    :func:`radioplat.compression.quantization.student.quantize_student`.

    A backbone that was quantized before keeps its quantizers and their scales.
    """
    if detector.architecture.quantized is not None:
        hint = "Quantize the checkpoint that it was made of."
        raise SpecError("this detector is quantized already", where="quantize.checkpoint", hint=hint)
    require_pictures([images.cpu().numpy() for images in batches], "dataset.quant_calibration_dataset")
    detector = copy.deepcopy(detector).eval().to(device)
    known = detector.architecture.student.quantized
    size = detector.img_size
    noise = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0)).to(device)
    before = detector
    detector, folded = fold_pairs(detector, noise, lambda one: [tensor for _, tensor in one.feature_probe(noise)])
    if not folded:
        detector = copy.deepcopy(detector)
    how = place(detector, asked, used_layers(detector, lambda: detector(noise)))
    how = replace(how, folded=[list(pair) for pair in folded])
    unfolded = [(conv, norm) for conv, norm in following_norms(detector, noise) if conv in how.layers]
    # Weights that were rounded by learned scales stay as they are.
    equalized = equalize(detector, noise) if asked.equalize and known is None else []
    backbone, rest = how.split(BACKBONE)
    student = replace(detector.architecture.student, quantized=backbone if known is None else known)
    made = Detector(replace(detector.architecture, student=student, quantized=rest)).eval().to(device)
    load_folded(made, detector)

    def show(detector: nn.Module) -> None:
        for images in batches:
            detector(images.to(device))

    kept = () if known is None else (BACKBONE,)
    idle = calibrate(made, asked, lambda: show(made), kept)
    borrow_scales(made, asked, show, kept)
    cosine = likeness(made, before, batches, device)
    return Quantized(made.cpu(), len(folded), equalized, idle, unfolded, cosine)
