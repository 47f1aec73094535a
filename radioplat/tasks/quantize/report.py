"""Report of a quantization; ``quantize.json`` of the checkpoint."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path

from radioplat.launch.driver import RunResult
from radioplat.models.quantized.additions import NAME as ADDITIONS
from radioplat.models.quantized.attention import NAME as ATTENTION
from radioplat.models.quantized.quantizer import quantizers
from radioplat.models.vision_model import VisionModel

MODEL, REPORT = "model_quantized", "quantize.json"


@dataclass(frozen=True)
class QuantizerReport:
    """One quantizer.

    Attributes:
        name: in the student.
        format: ``int8``, ``int4`` or ``fp8``.
        scales: number of scales.
        amax: the largest magnitude that is not clipped; the maximum over all scales.
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
    """Result of the task ``quantize``.

    Attributes:
        path: a checkpoint folder, for ``radioplat.load_student`` or a spec's ``pretrained_model_path``; with backend
            modelopt.onnx an ONNX file.
        checkpoint: the model that was quantized.
        layers: the quantized layers, in the model's order.
        skipped: reasons why linear layers and convolutions stay float, by name.
        images: number of calibration images.
        cosine: mean cosine of the features before and after, by ``summary`` and ``spatial``; of a detector by ``maps``
            and ``memory``.
        folded: number of BatchNorms folded into the convolution before them.
        equalized: number of pairs of layers whose weights were balanced.
        notes: further remarks, one sentence each.
        trained: result of the training with mode qat.
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
    def student(self) -> Path:
        """The final checkpoint: of the training with mode qat, else :attr:`path`."""
        return self.path if self.trained is None else self.trained.checkpoint


def layer_reports(student: VisionModel) -> list[LayerReport]:
    """Return all quantized layers and residual branches, in the model's order."""
    reports: dict[tuple[str, str], LayerReport] = {}
    for name, quantizer in quantizers(student).items():
        parent, _, leaf = name.rpartition(".")
        own = QuantizerReport(name, quantizer.format.value, quantizer.scale.numel(), float(quantizer.amax.max()))
        layer = type(student.get_submodule(parent)).__name__.removeprefix("Quantized")
        key = parent, "residual" if leaf == "residual_quantizer" else layer
        for part, kind in ((ADDITIONS, "residual"), (ATTENTION, "attention")):
            if f".{part}." in name:
                key = name, kind
        report = reports.get(key, LayerReport(*key))
        reports[key] = replace(report, weights=own) if leaf == "weight_quantizer" else replace(report, activations=own)
    return list(reports.values())
