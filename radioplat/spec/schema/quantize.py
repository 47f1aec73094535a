"""Spec section ``quantize``: a trained student in INT8, FP8 or W4A8. Names are TAO's where TAO has the field."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from radioplat.spec.ranges import number

# Sizes of blocks of 4-bit weights that TensorRT has kernels for, the default first.
BLOCK_SIZES = (128, 64)


class QuantizeMode(str, Enum):
    """Kind of quantization."""

    static_ptq = "static_ptq"  # TAO's name: weights and activations, calibrated on images
    weight_only_ptq = "weight_only_ptq"  # TAO's name: weights only
    ptq = "ptq"  # (+) static_ptq
    qat = "qat"  # (+) ptq, then distillation from the teachers of section distill, which trains weights and scales


class Calibrator(str, Enum):
    """Method that determines the range of a tensor."""

    minmax = "minmax"  # the largest magnitude
    max = "max"  # TAO's other name of minmax
    percentile = "percentile"  # (+) a percentile of the magnitudes
    entropy = "entropy"  # minimal Kullback-Leibler divergence (as in TensorRT)
    mse = "mse"  # (+) minimal squared error; for weights, too


@dataclass
class TensorFormat:
    """Format of weights or activations: int8, int4 (weights only), fp8_e4m3fn, or native for float."""

    dtype: str | None = None  # int8 | int4 | fp8_e4m3fn | native; unset: the default of quantize


@dataclass
class LayerRule:
    """Formats of the layers that match a name or class; the last matching rule applies."""

    module_name: str = "???"  # pattern of a layer's name, of a parent module's name, or a class (Linear, Conv2d)
    weights: TensorFormat = field(default_factory=TensorFormat)  # format of the weights
    activations: TensorFormat = field(default_factory=TensorFormat)  # format of the inputs


@dataclass
class QatConfig:
    """(+) For ``mode: qat``: settings that replace those of section ``train`` while the quantized student trains."""

    results_dir: str | None = None  # results folder of the run; default: results_dir/qat
    # length in epochs; if neither length is set, that of section train
    num_epochs: int | None = number(None, at_least=1)
    max_steps: int | None = number(None, at_least=1)  # length in optimizer steps
    lr: float | None = number(None, above=0)  # learning rate; unset: by train.optim.lr


@dataclass
class QuantizeConfig:
    """Spec section ``quantize``."""

    checkpoint: str | None = None  # (+) checkpoint to read; default: results_dir/distill's (or train's) latest
    model_path: str | None = None  # TAO's name of checkpoint
    results_dir: str | None = None  # folder of this task; default: results_dir/quantize
    backend: str = "native"  # native (+) | modelopt.pytorch | modelopt.onnx; torchao: native, for one release
    # arguments of the backend, by its own names; for modelopt
    backend_kwargs: dict[str, Any] = field(default_factory=dict)
    device: str | None = None  # device for calibration; default: a GPU if there is one
    mode: QuantizeMode = QuantizeMode.ptq
    algorithm: Calibrator = Calibrator.minmax
    percentile: float = number(99.99, at_least=50, at_most=100)  # (+) for algorithm: percentile
    # format of layers without a rule; unset: int8 if there are no rules at all, else native, as in TAO
    default_layer_dtype: str | None = None
    # activations where a rule or default names none; unset: fp8 with fp8 weights, else int8; native for weight_only_ptq
    default_activation_dtype: str | None = None
    layers: list[LayerRule] = field(default_factory=list)  # formats of single layers
    skip_names: list[str] = field(default_factory=list)  # patterns as for module_name; these layers stay float
    per_channel: bool = True  # (+) one weight scale per output channel; false: one per layer
    # (+) inputs of an output channel that share a scale of int4 weights with float activations: 128 or 64; unset: the
    # larger one that divides the layer's inputs
    block_size: int | None = number(None, at_least=1)
    heads: bool = False  # (+) also quantize the teachers' heads, except their last layers, which are regressions
    # (+) int8 | fp8_e4m3fn: also the operands of attention's two products, so that engines compute all of it in 8 bits
    attention: str | None = None
    equalize: bool = False  # (+) cross-layer equalization of convolutions in a row (Nagel et al. 2019)
    # (+) give outputs of convolutions with folded BatchNorm the mean and variance that they have in floats
    reestimate_batchnorm: bool = False
    relu6: bool = False  # (+) replace ReLU by ReLU6, whose range is known; changes the student's outputs
    # (+) batches of dataset.batch_size images of dataset.quant_calibration_dataset, or of train_dataset if it is empty
    calibration_batches: int = number(32, at_least=1)
    qat: QatConfig = field(default_factory=QatConfig)  # (+)
