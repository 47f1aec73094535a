"""What a quantization did, as data, on disk beside the checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from radioplat.launch.driver import RunResult
from radioplat.models.quantized.quantizer import quantizers
from radioplat.models.vision_model import VisionModel

MODEL, REPORT = "model_quantized", "quantize.json"


@dataclass(frozen=True)
class QuantizerReport:
    """One quantizer.

    Attributes:
        name: in the student.
        format: ``int8``, ``int4`` or ``fp8``.
        scales: how many.
        amax: the largest magnitude that it does not clip; of several scales the largest.
    """

    name: str
    format: str
    scales: int
    amax: float


@dataclass(frozen=True)
class LayerReport:
    """One quantized layer, or the residual branch of a block.

    Attributes:
        type: its class, or ``residual``.
    """

    name: str
    type: str
    weights: QuantizerReport | None = None
    activations: QuantizerReport | None = None


@dataclass(frozen=True)
class QuantizeReport:
    """What was quantized.

    Attributes:
        path: a checkpoint folder; ``radioplat.load_student`` opens it, and a spec's ``pretrained_model_path`` names it.
            With backend modelopt.onnx an ONNX file.
        skipped: linear layers and convolutions that stay float, and why.
        images: how many the ranges were measured on.
        cosine: mean over them of what the student says and said before, by ``summary`` and ``spatial``; of a detector
            by ``maps`` and ``memory``.
        folded: BatchNorms that went into the convolution before them.
        equalized: pairs of layers whose weights were balanced.
        notes: what else should be known, a sentence each.
        trained: with mode qat the run that trained it.
    """

    path: Path
    checkpoint: Path
    layers: list[LayerReport]
    skipped: dict[str, str]
    images: int
    cosine: dict[str, float]
    folded: int = 0
    equalized: int = 0
    notes: list[str] = field(default_factory=list)
    trained: RunResult | None = None

    @property
    def result(self) -> Path:
        """The checkpoint to go on with."""
        return self.path if self.trained is None else self.trained.checkpoint


def layer_reports(student: VisionModel) -> list[LayerReport]:
    """Every quantized layer and residual branch, in the model's order."""
    found = []
    for name, quantizer in quantizers(student).items():
        parent, _, leaf = name.rpartition(".")
        own = QuantizerReport(name, quantizer.format.value, quantizer.scale.numel(), float(quantizer.amax.max()))
        if leaf == "residual_quantizer":
            found.append(LayerReport(parent, "residual", None, own))
            continue
        if not found or found[-1].name != parent:
            kind = type(student.get_submodule(parent)).__name__.removeprefix("Quantized")
            found.append(LayerReport(parent, kind))
        last = found.pop()
        both = (own, last.activations) if leaf == "weight_quantizer" else (last.weights, own)
        found.append(LayerReport(last.name, last.type, *both))
    return found
