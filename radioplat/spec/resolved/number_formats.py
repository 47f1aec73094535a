"""Table of the number formats of weights and activations, read by all code that depends on the format.

It imports neither torch nor onnx: a row has the names of their types (``getattr(torch, row.torch_type)``). Rounding
to a format is in :mod:`radioplat.models.quantized.fake_quantize`, limits of one engine builder are with that builder.
"""

from __future__ import annotations

from dataclasses import dataclass

from radioplat.spec.schema.quantize import Calibrator, LayerRule, QuantizeConfig, QuantizeMode

NATIVE = "native"


@dataclass(frozen=True)
class DataType:
    """One number format.

    Attributes:
        bits: bits per value.
        exponent_bits: exponent bits; 0 for integers.
        highest: largest value; see :attr:`lowest`.
        torch_type: torch dtype that stores its values.
        onnx_type: its name in ``onnx.TensorProto``.
        least_opset: first ONNX operator set with this format: in QuantizeLinear for a quantized format, in convolutions
            for a float.
        engine_type: for a quantized format, the format of the activations that its weights are multiplied with (itself,
            if activations may have it); engines are named by it.
        spellings: other names in section ``quantize``, TAO's first.
        toolkit_calibrators: calibrators that ModelOpt supports for activations in it.
        first_sm: compute capability of the first GPUs with arithmetic in it; TensorRT for RTX refuses older ones.
        first_tensorrt: first version of TensorRT that reads it.
        builder_flag: its name in ``tensorrt.BuilderFlag``, if any.
        log_name: its name in TensorRT's list of kernels, if known.
    """

    name: str
    bits: int
    exponent_bits: int
    highest: float
    torch_type: str
    onnx_type: str
    least_opset: int
    engine_type: str | None = None
    spellings: tuple[str, ...] = ()
    toolkit_calibrators: tuple[Calibrator, ...] = tuple(Calibrator)
    first_sm: int = 0
    first_tensorrt: int = 0
    builder_flag: str | None = None
    log_name: str | None = None

    @property
    def lowest(self) -> float:
        """Smallest value: of an integer one below the negative of the largest, as ONNX's QuantizeLinear clips."""
        return -self.highest if self.is_float else -self.highest - 1

    @property
    def is_float(self) -> bool:
        """True if its values have an exponent."""
        return self.exponent_bits > 0

    @property
    def is_quantized(self) -> bool:
        """True if its values need a scale."""
        return self.engine_type is not None

    @property
    def tao_name(self) -> str:
        """TAO's name of it in section ``quantize``."""
        return (*self.spellings, self.name)[0]


# Messages list formats in this order.
DATA_TYPES = {
    row.name: row
    for row in (
        DataType("fp32", 32, 8, (2 - 2**-23) * 2.0**127, "float32", "FLOAT", 1, log_name="Float"),
        DataType("fp16", 16, 5, 65504.0, "float16", "FLOAT16", 1, builder_flag="FP16", log_name="Half"),
        DataType(
            "bf16", 16, 8, (2 - 2**-7) * 2.0**127, "bfloat16", "BFLOAT16", 22,
            first_sm=80, first_tensorrt=9, builder_flag="BF16", log_name="BFloat16",
        ),
        DataType("int8", 8, 0, 127.0, "int8", "INT8", 13, "int8", builder_flag="INT8", log_name="Int8"),
        DataType("int4", 4, 0, 7.0, "int8", "INT4", 21, "int8", first_tensorrt=10),  # torch has no tensors of 4 bits
        DataType(  # E4M3 without infinities
            "fp8", 8, 4, 448.0, "float8_e4m3fn", "FLOAT8E4M3FN", 19, "fp8",
            spellings=("fp8_e4m3fn", "float8_e4m3fn"), toolkit_calibrators=(Calibrator.minmax, Calibrator.max),
            first_sm=89, first_tensorrt=9, builder_flag="FP8", log_name="FP8",
        ),
    )
}  # fmt: skip
FLOATS = tuple(name for name, row in DATA_TYPES.items() if not row.is_quantized)
QUANTIZED = tuple(name for name, row in DATA_TYPES.items() if row.is_quantized)
# Formats of activations, each with the formats of weights that it can be multiplied with.
ACTIVATIONS = {
    name: tuple(weights for weights in QUANTIZED if DATA_TYPES[weights].engine_type == name)
    for name in QUANTIZED
    if DATA_TYPES[name].engine_type == name
}
# Configurations of ModelOpt that find factors of channels: formats of the weights and activations that they are for.
SMOOTHING: dict[str, tuple[str, str | None]] = {
    "INT8_SMOOTHQUANT_CFG": ("int8", "int8"),
    "INT4_AWQ_CFG": ("int4", None),
}
# Names in section `quantize`: the name of the format.
SPELLINGS = {spelling: name for name in QUANTIZED for spelling in (name, *DATA_TYPES[name].spellings)}


def engine_type(weights: str) -> str:
    """Return the format that an engine with such weights is named by; ``weights`` itself if not in the table."""
    row = DATA_TYPES.get(weights)
    return row.engine_type or weights if row else weights


def formats_of(config: QuantizeConfig, rule: LayerRule | None) -> tuple[str | None, str | None]:
    """Return the formats of weights and activations of the layers that match ``rule``; None for float.

    Args:
        rule: None for layers that match no rule.
    """
    if rule is None:
        weights = _format(config.default_layer_dtype or (NATIVE if config.layers else "int8"))
    else:
        weights = _format(rule.weights.dtype or config.default_layer_dtype or "int8")
    if weights is None or config.mode is QuantizeMode.weight_only_ptq:
        return weights, None
    activations = (rule.activations.dtype if rule is not None else None) or config.default_activation_dtype
    return weights, _format(activations or engine_type(weights))


def has_blocks(weights: str | None, activations: str | None) -> bool:
    """Return whether weights of a format have a scale for each block, as TensorRT has 4 bits with float activations."""
    return weights == "int4" and activations is None


def _format(spelling: str) -> str | None:
    return None if spelling == NATIVE else SPELLINGS[spelling]
