"""Post-training quantization of a student or a detector: fuse branches, fold, place, equalize, calibrate."""

from __future__ import annotations

import contextlib
import copy
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Generic, TypeVar

import torch
import torch.nn.functional as F
from torch import nn

from radioplat.compression.quantization.calibrate import calibrate
from radioplat.compression.quantization.equalize import equalize
from radioplat.compression.quantization.find_additions import find_additions
from radioplat.compression.quantization.find_attention import find_attention
from radioplat.compression.quantization.modelopt import calibrate_by_modelopt
from radioplat.compression.quantization.placement import keeps_additions, place, place_attention
from radioplat.compression.quantization.reestimate_norms import reestimate_norms
from radioplat.compression.quantization.shared_scales import shared_scales
from radioplat.compression.quantization.smooth import smooth
from radioplat.data.loading.sample_images import check_calibration_images
from radioplat.errors import SpecError
from radioplat.models.modifiers.fold_batchnorm import fold_pairs, following_norms
from radioplat.models.modifiers.fuse_branches import PRUNED_WITH_THEM, branch_notes, count_convolutions, fusion_notes
from radioplat.models.quantized.quantizer import quantizers
from radioplat.models.vision_model import VisionModel
from radioplat.spec.schema.quantize import QuantizeConfig

M = TypeVar("M", bound=nn.Module)


@dataclass(frozen=True)
class Quantized(Generic[M]):
    """A quantized student or detector.

    Attributes:
        model: on the CPU, in evaluation mode; its architecture lists the quantized layers.
        folded: number of BatchNorms folded into the convolution before them.
        equalized: pairs of layers whose weights were balanced.
        idle: quantizers whose input was zero everywhere; their scale is 1 over the format's highest value.
        unfolded: quantized convolutions with the BatchNorm that stays behind them, because folding changed the outputs.
        cosine: mean cosine, over the calibration images, of the features before and after, by kind: ``summary`` and
            ``spatial`` of a student, ``maps`` (backbone) and ``memory`` (encoder) of a detector. A detector's queries
            are not compared, because other positions may become queries.
        reestimated: convolutions whose outputs got the statistics of the float model.
        smoothed: layers whose inputs have factors of ModelOpt's SmoothQuant or AWQ, in the normalization before them.
        notes: whether the branches of its blocks were fused, one sentence; none if it has none.
    """

    model: M
    folded: int = 0
    equalized: list[tuple[str, str]] = field(default_factory=list)
    idle: list[str] = field(default_factory=list)
    unfolded: list[tuple[str, str]] = field(default_factory=list)
    cosine: dict[str, float] = field(default_factory=dict)
    reestimated: list[str] = field(default_factory=list)
    smoothed: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


@torch.no_grad()
def quantize_model(
    model: Any, config: QuantizeConfig, batches: list[torch.Tensor], device: torch.device | str = "cpu"
) -> Quantized[Any]:
    """Return a quantized copy of ``model``, in fp32.

    A detector's backbone that is quantized already keeps its quantizers and their scales.

    Args:
        model: a :class:`~radioplat.models.vision_model.VisionModel` in fp32 with plain weights.
        batches: uint8 ``[B, 3, H, W]``, the calibration images.
        device: the device that computes.

    Raises:
        SpecError: it is quantized already, a pattern matches no layer, or no layer is left to quantize.
        DataError: there are no images, or all are of one colour.
        WeightsError: the input of a layer is not finite.
    """
    if model.architecture.quantized is not None:
        hint = "Quantize the checkpoint that it was made of."
        raise SpecError(f"this {model.model_kind} is quantized already", where="quantize.checkpoint", hint=hint)
    check_calibration_images([images.cpu().numpy() for images in batches], "dataset.quant_calibration_dataset")
    before = copy.deepcopy(model).eval().to(device)
    settled = tuple(before.architecture.quantizations)  # prefixes of layers whose scales stay as they are
    size = model.architecture.img_size
    noise = torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0)).to(device)
    fused = copy.deepcopy(before).fuse_branches()
    notes = fusion_notes(count_convolutions(before), count_convolutions(fused)) or branch_notes(fused, PRUNED_WITH_THEM)
    folded, pairs = fold_pairs(fused, noise, lambda one: [tensor for _, tensor in one.feature_probe(noise)])
    if not pairs:
        folded = copy.deepcopy(fused)
    placement = place(folded, config, used_layers(folded, lambda: folded.run_all(noise)))
    additions = find_additions(
        folded,
        placement.layers,
        lambda name: keeps_additions(folded, name, placement, config),
        lambda: folded.run_all(noise),
    )
    attention = place_attention(folded, config, find_attention(folded, lambda: folded.run_all(noise)))
    placement = replace(placement, folded=[list(pair) for pair in pairs], additions=additions, attention=attention)
    unfolded = [(conv, norm) for conv, norm in following_norms(folded, noise) if conv in placement.layers]
    equalized = []
    if config.equalize and not settled:
        equalized = equalize(folded, noise, [images.to(device) for images in batches])
    runs = [lambda model, images=images: model.run_all(images.to(device)) for images in batches]

    def run(model: Any) -> None:
        """Run all calibration images."""
        for each in runs:
            each(model)

    smoothed = [] if settled else smooth(folded, config, placement, noise, run)
    made = type(model)(fused.architecture.with_quantization(placement)).eval().to(device)
    load_folded(made, folded)
    shared = shared_scales(made, lambda: made.run_all(noise), settled)
    for name, leader in shared.items():
        made.get_submodule(name).follow(made.get_submodule(leader))
    made.architecture = fused.architecture.with_quantization(replace(placement, shared=shared))
    idle = calibrate(made, config, lambda: run(made), settled)
    calibrate_by_modelopt(made, config, run, settled)
    reestimated = []
    if config.reestimate_batchnorm:
        names = [conv for conv, _ in pairs if conv in placement.layers and not conv.startswith(settled)]
        reestimated = reestimate_norms(made, folded, names, runs)
    cosine = mean_cosine(made, before, batches, device)
    return Quantized(made.cpu(), len(pairs), equalized, idle, unfolded, cosine, reestimated, smoothed, notes)


def mean_cosine(
    model: VisionModel, before: VisionModel, batches: list[torch.Tensor], device: torch.device | str
) -> dict[str, float]:
    """Return the mean cosine of two models' features of the same images, by kind of feature."""
    cosines: dict[str, list[torch.Tensor]] = {}
    for images in batches:
        pairs = zip(model.feature_probe(images.to(device)), before.feature_probe(images.to(device)), strict=True)
        for (kind, a), (_, b) in pairs:
            cosines.setdefault(kind, []).append(F.cosine_similarity(a, b, dim=-1).flatten())
    return {kind: float(torch.cat(parts).mean()) for kind, parts in cosines.items()}


def used_layers(model: nn.Module, run: Callable[[], object]) -> set[str]:
    """Return the names of the modules of ``model`` that ``run`` calls."""
    called: set[str] = set()
    with contextlib.ExitStack() as hooks:
        for name, module in model.named_modules():
            hooks.callback(module.register_forward_pre_hook(lambda *_, name=name: called.add(name)).remove)
        run()
    return called


def load_folded(quantized: nn.Module, folded: nn.Module) -> None:
    """Load the weights of ``folded``, which has no new quantizers, into ``quantized``."""
    missing, unexpected = quantized.load_state_dict(folded.state_dict(), strict=False)
    assert not unexpected and {*missing} <= {f"{name}.scale" for name in quantizers(quantized)}, (missing, unexpected)
