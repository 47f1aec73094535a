"""The number formats of weights and activations: one row each, which all that treats one format unlike another asks.

No torch and no onnx in here: a row names their types (``getattr(torch, row.torch_type)``). What is kept elsewhere is
code, not facts: how a format is rounded to (:mod:`radioplat.models.quantized.fake_quantize`), and what one builder
cannot do with it.
"""

from __future__ import annotations

from dataclasses import dataclass

from radioplat.spec.schema.quantize import Calibrator, LayerRule, QuantizeConfig, QuantizeMode

NATIVE = "native"


@dataclass(frozen=True)
class DataType:
    """One number format.

    Attributes:
        bits: of one value.
        exponent_bits: of these; 0 for integers.
        highest: the largest value that it holds; the lowest is its negative.
        torch_type: what torch holds its values in.
        onnx_type: its name in ``onnx.TensorProto``.
        least_opset: the first ONNX operator set that can be written with it: of a quantized one, the first whose
            QuantizeLinear knows it; of a float, the first that defines convolutions in it.
        engine_type: of a quantized one, the format of the activations that its weights are multiplied with, after
            which an engine is named; its own name where activations may be in it.
        spellings: other names in section ``quantize``, TAO's first.
        toolkit_calibrators: the calibrators that ModelOpt has for activations in it, at most.
        first_sm: the compute capability of the first GPUs with arithmetic in it; TensorRT for RTX refuses older ones.
        first_tensorrt: the first version of TensorRT that reads it.
        builder_flag: its name in ``tensorrt.BuilderFlag``, where it has one.
        log_name: its name in TensorRT's list of kernels, where that is known.
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
    def is_float(self) -> bool:
        """Whether its values have an exponent."""
        return self.exponent_bits > 0

    @property
    def is_quantized(self) -> bool:
        """Whether values in it need a scale."""
        return self.engine_type is not None

    @property
    def tao_name(self) -> str:
        """How TAO spells it in section ``quantize``."""
        return (*self.spellings, self.name)[0]


# In the order in which messages name them. Bits, exponent bits, highest value, and so on: see DataType.
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
# Those that activations may be in, each with the weights that it can be multiplied with.
ACTIVATIONS = {
    name: tuple(weights for weights in QUANTIZED if DATA_TYPES[weights].engine_type == name)
    for name in QUANTIZED
    if DATA_TYPES[name].engine_type == name
}
# What section `quantize` may say, and the name of the format.
SPELLINGS = {spelling: name for name in QUANTIZED for spelling in (name, *DATA_TYPES[name].spellings)}


def engine_type(weights: str) -> str:
    """What an engine of layers with such weights is named after; a format that is not in the table, after itself."""
    row = DATA_TYPES.get(weights)
    return row.engine_type or weights if row else weights


def formats_of(asked: QuantizeConfig, rule: LayerRule | None) -> tuple[str | None, str | None]:
    """Formats of weights and activations of the layers that ``rule`` meets, or that none does; None for float."""
    if rule is None:
        weights = _own(asked.default_layer_dtype or (NATIVE if asked.layers else "int8"))
    else:
        weights = _own(rule.weights.dtype or asked.default_layer_dtype or "int8")
    if weights is None or asked.mode is QuantizeMode.weight_only_ptq:
        return weights, None
    said = (rule.activations.dtype if rule is not None else None) or asked.default_activation_dtype
    return weights, _own(said or engine_type(weights))


def _own(said: str) -> str | None:
    return None if said == NATIVE else SPELLINGS[said]
