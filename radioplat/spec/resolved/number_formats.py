"""What the section ``quantize`` says of dtypes, in the project's own names."""

from __future__ import annotations

from radioplat.spec.schema.quantize import LayerRule, QuantizeConfig, QuantizeMode

NATIVE = "native"
# What the spec may say, and the name of models.fake_quantize's NumberFormat.
FORMATS = {"int8": "int8", "int4": "int4", "fp8": "fp8", "fp8_e4m3fn": "fp8", "float8_e4m3fn": "fp8"}
# The formats of activations, and those of the weights that each can be multiplied with.
ACTIVATIONS = {"int8": ("int8", "int4"), "fp8": ("fp8",)}


def formats_of(asked: QuantizeConfig, rule: LayerRule | None) -> tuple[str | None, str | None]:
    """Formats of weights and activations of the layers that ``rule`` meets, or that none does; None for float."""
    if rule is None:
        weights = _own(asked.default_layer_dtype or (NATIVE if asked.layers else "int8"))
    else:
        weights = _own(rule.weights.dtype or asked.default_layer_dtype or "int8")
    if weights is None or asked.mode is QuantizeMode.weight_only_ptq:
        return weights, None
    said = (rule.activations.dtype if rule is not None else None) or asked.default_activation_dtype
    return weights, _own(said or ("fp8" if weights == "fp8" else "int8"))


def _own(said: str) -> str | None:
    return None if said == NATIVE else FORMATS[said]
