"""Spec section ``quantize``: a trained student in INT8, FP8 or W4A8. Names are TAO's where TAO has the field."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from radioplat.spec.ranges import number


class QuantizeMode(str, Enum):
    """What is done."""

    static_ptq = "static_ptq"  # TAO's: weights and activations, calibrated on images
    weight_only_ptq = "weight_only_ptq"  # TAO's: activations stay float
    ptq = "ptq"  # (+) static_ptq
    qat = "qat"  # (+) that, and then a distillation from the section distill's teachers that trains weights and scales


class Calibrator(str, Enum):
    """How the range of a tensor is found."""

    minmax = "minmax"  # the largest magnitude seen
    max = "max"  # TAO's other name of it
    percentile = "percentile"  # (+) the magnitude that a share of the values stays below
    entropy = "entropy"  # the least Kullback-Leibler divergence (TensorRT's)
    mse = "mse"  # (+) the least squared error; of weights, too


@dataclass
class TensorFormat:
    """Of weights or of activations: int8, int4 (weights), fp8_e4m3fn, or native for float."""

    dtype: str | None = None


@dataclass
class LayerRule:
    """What the layers of a name or class get; where several rules meet a layer, the last one counts."""

    module_name: str = "???"  # a pattern: of a layer, of a module around it, or a class (Linear, Conv2d)
    weights: TensorFormat = field(default_factory=TensorFormat)
    activations: TensorFormat = field(default_factory=TensorFormat)


@dataclass
class QatConfig:
    """(+) Of ``mode: qat``: what is otherwise than in section ``train`` while the quantized student learns."""

    results_dir: str | None = None  # of the run; default: results_dir/qat
    num_epochs: int | None = number(None, at_least=1)
    max_steps: int | None = number(None, at_least=1)
    lr: float | None = number(None, above=0)


@dataclass
class QuantizeConfig:
    """Spec section ``quantize``."""

    checkpoint: str | None = None  # (+) default: results_dir/distill's (or train's) latest
    model_path: str | None = None  # TAO's name of it
    results_dir: str | None = None
    backend: str = "native"  # native (+) | modelopt.pytorch | modelopt.onnx | torchao
    backend_kwargs: dict[str, Any] = field(default_factory=dict)
    device: str | None = None  # that calibrates; default: a GPU where there is one
    mode: QuantizeMode = QuantizeMode.ptq
    algorithm: Calibrator = Calibrator.minmax
    percentile: float = number(99.99, at_least=50, at_most=100)  # (+) of algorithm: percentile
    # layers that no rule meets; unset: int8 where there are no rules, else native, as TAO has it
    default_layer_dtype: str | None = None
    # of rules and defaults that name none; unset: fp8 beside fp8, else int8, and native with mode weight_only_ptq
    default_activation_dtype: str | None = None
    layers: list[LayerRule] = field(default_factory=list)
    skip_names: list[str] = field(default_factory=list)  # patterns, as module_name; these stay float
    per_channel: bool = True  # (+) a weight's scale for each output channel; false: one for all
    heads: bool = False  # (+) the teachers' heads, too, but for their last layers, which are regressions
    equalize: bool = False  # (+) cross-layer equalization of convolutions in a row (Nagel et al. 2019)
    relu6: bool = False  # (+) ReLU becomes ReLU6, a range that is known; what the student says changes
    # (+) of dataset.batch_size images, from dataset.quant_calibration_dataset, or train's where that is empty
    calibration_batches: int = number(32, at_least=1)
    qat: QatConfig = field(default_factory=QatConfig)  # (+)
