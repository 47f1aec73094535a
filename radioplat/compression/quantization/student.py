"""Post-training quantization of a student: fold, place, equalize, calibrate."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import nn

from radioplat.compression.quantization.backends.registry import borrow_scales
from radioplat.compression.quantization.calibrate import calibrate
from radioplat.compression.quantization.equalize import equalize
from radioplat.compression.quantization.placement import place
from radioplat.data.loading.sample_images import require_pictures
from radioplat.errors import SpecError
from radioplat.models.features import Features
from radioplat.models.modifiers.fold_batchnorm import fold_pairs, following_norms
from radioplat.models.student.student import Student
from radioplat.models.vision_model import VisionModel
from radioplat.spec.schema.quantize import QuantizeConfig

WANTED = frozenset({"summary", "spatial"})
M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class Quantized(Generic[M]):
    """A quantized student or detector.

    Attributes:
        model: on the CPU, in evaluation mode; its architecture says what is quantized.
        folded: BatchNorms that went into the convolution before them.
        equalized: pairs of layers whose weights were balanced.
        idle: quantizers that saw nothing but zeros; their scale is 1 over the format's highest value.
        unfolded: quantized convolutions with the BatchNorm that stays behind them: folding changed what is said.
        cosine: of what it says and what it said before, mean over the calibration images: of a student by ``summary``
            and ``spatial``, of a detector by position, ``maps`` of the backbone and ``memory`` of the encoder, from
            which queries are chosen (which they are may change, so of queries there is no such number).
    """

    model: M
    folded: int = 0
    equalized: list[tuple[str, str]] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)
    unfolded: list[tuple[str, str]] = field(default_factory=list)
    cosine: dict[str, float] = field(default_factory=dict)


@torch.no_grad()
def quantize_student(
    student: Student, asked: QuantizeConfig, batches: list[torch.Tensor], device: torch.device | str = "cpu"
) -> Quantized[Student]:
    """A quantized copy of ``student``, in fp32.

    Args:
        student: in fp32 with plain weights, as :func:`radioplat.models.student.checkpoint.load_student` gives it.
        batches: uint8 ``[B, 3, H, W]``, what ranges are measured on.
        device: that computes.

    Raises:
        SpecError: it is quantized already, a pattern meets nothing, or nothing is left.
        DataError: there are no images, or all are of one colour.
        WeightsError: what a layer takes is not finite.
    """
    if student.architecture.quantized is not None:
        hint = "Quantize the checkpoint that it was made of."
        raise SpecError("this student is quantized already", where="quantize.checkpoint", hint=hint)
    require_pictures([images.cpu().numpy() for images in batches], "dataset.quant_calibration_dataset")
    student = copy.deepcopy(student).eval().to(device)
    size = student.architecture.img_size
    noise = torch.randn(2, 3, size, size, generator=torch.Generator().manual_seed(0)).to(device)
    before = copy.deepcopy(student)
    student.backbone, folded = fold_pairs(student.backbone, noise)
    how = place(student, asked, used_layers(student, lambda: _say(student, noise.clamp(0, 1))))
    how = replace(how, folded=[[f"backbone.{conv}", f"backbone.{norm}"] for conv, norm in folded])
    behind = [(f"backbone.{conv}", f"backbone.{norm}") for conv, norm in following_norms(student.backbone, noise)]
    unfolded = [(conv, norm) for conv, norm in behind if conv in how.layers]
    pairs = equalize(student.backbone, noise) if asked.equalize else []
    made = Student(replace(student.architecture, quantized=how)).eval().to(device)
    load_folded(made, student)

    def show(student: Student) -> None:
        for images in batches:
            _say(student, images.to(device))

    idle = calibrate(made, asked, lambda: show(made))
    borrow_scales(made, asked, show)
    cosine = likeness(made, before, batches, device)
    equalized = [(f"backbone.{a}", f"backbone.{b}") for a, b in pairs]
    return Quantized(made.cpu(), len(folded), equalized, idle, unfolded, cosine)


def likeness(
    made: VisionModel, before: VisionModel, batches: list[torch.Tensor], device: torch.device | str
) -> dict[str, float]:
    """Mean cosine of the features that two models give of the same images, by kind of feature."""
    found: dict[str, list[torch.Tensor]] = {}
    for images in batches:
        ours, theirs = (model.feature_probe(images.to(device)) for model in (made, before))
        for (kind, a), (_, b) in zip(ours, theirs, strict=True):
            found.setdefault(kind, []).append(F.cosine_similarity(a, b, dim=-1).flatten())
    return {kind: float(torch.cat(parts).mean()) for kind, parts in found.items()}


def used_layers(student: nn.Module, run: Callable[[], object]) -> set[str]:
    """Names of the modules of ``student`` that are called by ``run``."""
    called: set[str] = set()
    handles = [m.register_forward_pre_hook(lambda *_, name=n: called.add(name)) for n, m in student.named_modules()]
    try:
        run()
    finally:
        for handle in handles:
            handle.remove()
    return called


def _say(student: Student, images: torch.Tensor) -> Features:
    """Backbone and heads."""
    wanted = WANTED | {"logits"} if student.architecture.num_classes else WANTED
    features = student(images, wanted)
    for name in student.head_names:
        student.head(name, features)
    return features


def load_folded(made: nn.Module, folded: nn.Module) -> None:
    """Give ``made``, which has quantizers, the weights of ``folded``, which has none of them."""
    missing, unexpected = made.load_state_dict(folded.state_dict(), strict=False)
    assert not unexpected and all(name.endswith("quantizer.scale") for name in missing), (missing, unexpected)
