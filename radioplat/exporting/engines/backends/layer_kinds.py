"""Groups of operations that layers of engines belong to, by the library's name of the operation.

Names of TensorRT are those in its layer information: of TensorRT 8 and 10 in the issues 2418, 3583, 4020 and 4397 of
NVIDIA/TensorRT, and of TensorRT for RTX 1.7 in the log of a build.
"""

from __future__ import annotations

import re

ATTENTION, PRODUCTS, CONVERSIONS, NORMALIZATION = "attention", "products", "conversions", "normalization"
POOLING, COPIES, ELEMENTWISE, OTHER = "pooling and resizing", "copies", "element-wise", "other"
# Patterns of parts of the names, lower case; the first match counts.
_PARTS = {
    ATTENTION: ("scaleddotproduct", "mha", "attention"),
    # TensorRT calls a convolution "correlation", and a product with fused operations "fusion" or "runtime_fusion".
    PRODUCTS: (
        "conv(?!er)",
        "gemm",
        "matmul",
        "fullyconnected",
        "matrixmultiply",
        "matrix_multiply",
        "correlation",
        "fusion",
    ),
    CONVERSIONS: ("quantize", "convert", "(?<!broad)cast", "reorder", "reformat"),
    NORMALIZATION: ("norm", "mvn", "softmax", "reduce"),
    POOLING: ("pool", "resize", "interpolate", "upsample"),
    COPIES: (
        *("transpose", "reshape", "concat", "split", "slice", "gather", "shuffle", "constant", "expand", "tile"),
        *("broadcast", "noop", "copy", "permute", "squeeze", "flatten", "identity", "pad"),
    ),
    ELEMENTWISE: (
        *("eltwise", "elementwise", "pointwise", "unary", "math", "subgraph", "activation", "scale"),
        *("relu", "sigmoid", "swish", "silu", "gelu", "erf", "tanh", "clip", "hard", "softplus"),
        *("add", "sub", "mul", "div", "sum", "exp", "log", "pow", "sqrt", "where"),
    ),
}
# A kernel that TensorRT generates is called after its operations, four letters each: __myl_MulAddReluMulMinMaxRounCast.
_GENERATED, _OPERATIONS = "kgen", re.compile(r"[A-Z][a-z]+")
_MOVES = {"Resh", "Tran", "Conc", "Move", "Slic", "Repl", "Gath", "Etc"}


def group_of(kind: str, name: str = "") -> str:
    """Return the group of a layer.

    Args:
        kind: the library's name of the operation: ``Convolution``, ``FusedConv``, ``CaskConvolution``, ``kgen``.
        name: of the layer.
    """
    lower = kind.lower()
    if lower == _GENERATED:
        return _of_generated(name)
    return next((group for group, parts in _PARTS.items() if re.search("|".join(parts), lower)), OTHER)


def _of_generated(name: str) -> str:
    if "_gemm_" in name:  # fused attention
        return ATTENTION
    operations = set(_OPERATIONS.findall(name))
    if operations & {"Mean", "Soft", "Norm"}:
        return NORMALIZATION
    if "Roun" in operations or operations == {"Cast"}:
        return CONVERSIONS
    if not operations:
        return OTHER
    return COPIES if operations <= _MOVES else ELEMENTWISE
