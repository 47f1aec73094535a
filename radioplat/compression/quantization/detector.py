"""Post-training quantization of a detector: its backbone as a student's, and the encoder and decoder on it."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import nn

from radioplat.compression.quantization.backends.registry import borrow_scales
from radioplat.compression.quantization.calibrate import calibrate
from radioplat.compression.quantization.equalize import equalize
from radioplat.compression.quantization.placement import place
from radioplat.compression.quantization.student import Quantized, load_folded, used_layers
from radioplat.data.loading.sample_images import require_pictures
from radioplat.errors import SpecError
from radioplat.models.detectors.base import Detector
from radioplat.models.modifiers.fold_batchnorm import fold_pairs, following_norms
from radioplat.spec.schema.quantize import QuantizeConfig

BACKBONE = "student."  # how the names of its modules begin


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
    size = detector.architecture.student.img_size
    noise = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0)).to(device)
    before = detector
    detector, folded = fold_pairs(detector, noise, lambda one: positions(one, noise))
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
    cosine = _likeness(made, before, [images.to(device) for images in batches])
    return Quantized(made.cpu(), len(folded), equalized, idle, unfolded, cosine)


def positions(detector: Detector, images: torch.Tensor) -> list[torch.Tensor]:
    """What is said of every position, before some become queries: the backbone's maps, ``[B, C, h, w]``, and the
    encoder's memory, ``[B, N, D]``."""
    said: list[torch.Tensor] = []
    parts = [*detector.srcs, getattr(detector.detr, "model", detector.detr).enc_output]
    handles = [part.register_forward_hook(lambda _, args, output: said.append(output)) for part in parts]
    try:
        detector(images)
    finally:
        for handle in handles:
            handle.remove()
    return said


def _likeness(made: Detector, before: Detector, batches: Sequence[torch.Tensor]) -> dict[str, float]:
    found: dict[str, list[torch.Tensor]] = {"maps": [], "memory": []}
    for images in batches:
        *ours, our_memory = positions(made, images)
        *theirs, their_memory = positions(before, images)
        found["maps"] += [F.cosine_similarity(a, b, dim=1).flatten() for a, b in zip(ours, theirs, strict=True)]
        found["memory"].append(F.cosine_similarity(our_memory, their_memory, dim=-1).flatten())
    return {kind: float(torch.cat(parts).mean()) for kind, parts in found.items()}
