"""Log of a TensorRT builder: reasons of failures, and the chosen kernels."""

from __future__ import annotations

import math
import re
import sys

from radioplat.exporting.engines.backends.layer_kinds import ATTENTION, PRODUCTS, group_of
from radioplat.exporting.engines.interface import Kernel
from radioplat.spec.resolved.number_formats import ACTIVATIONS, DATA_TYPES, FLOATS

# Without a GPU every failure has these messages; they are never the reason, because a build needs no driver.
_NOISE = re.compile(r"cudaError 35|--- (Begin|End) node ---|^ModelImporter\.cpp:\d+: (While parsing|ERROR)")
_KERNEL = re.compile(r"^Name: (?P<name>.*?), LayerType: (?P<kind>\w+), Inputs: (?P<rest>\[ \{.*)")
_DATA_TYPE = re.compile(r"Datatype: (\w+)")
_CONSTANT = re.compile(r"Dimensions: \[([-\d,]*)\][^{}]*?Datatype: (\w+)")
_ONNX_LAYER = re.compile(r"\[ONNX Layer: ([^\]]+)\]")
# FP4 occurs in engines of other tools' files.
_NAMES = {row.log_name: name for name, row in DATA_TYPES.items() if row.log_name} | {"FP4": "fp4"}


class EngineLog:
    """Collects the messages of one build.

    A build of a small net logs thousands of lines, so only errors, warnings and the kernel list are kept.

    Attributes:
        errors, warnings: messages in order.
    """

    def __init__(self, echo: bool = False) -> None:
        """With ``echo``, print all messages but VERBOSE to standard error."""
        self.errors: list[str] = []
        self.warnings: list[str] = []
        self._echo = echo
        self._layers: str | None = None

    def add(self, severity: str, text: str) -> None:
        """Add a message; ``severity`` is the name of TensorRT's level."""
        if severity in ("ERROR", "INTERNAL_ERROR"):
            self.errors.append(text)
        elif severity == "WARNING":
            self.warnings.append(text)
        elif text.startswith("Layers:"):
            self._layers = text
        if self._echo and severity != "VERBOSE":
            print(f"TensorRT {severity}: {text}", file=sys.stderr)

    def reasons(self, limit: int = 3) -> list[str]:
        """Return the errors as single lines, without duplicates and messages about a missing GPU driver."""
        return readable(self.errors, limit)

    def layer_count(self) -> int | None:
        """Return the number of layers of the engine; None if the builder reports none."""
        return sum(bool(_KERNEL.match(line)) for line in (self._layers or "").splitlines()) or None

    def requantizing_count(self) -> int | None:
        """Return the number of layers that read floats, write 8 bits, and multiply nothing; None if there is no list.

        A convolution in INT8 that writes floats needs such a layer behind it.
        """
        lines = [match for line in (self._layers or "").splitlines() if (match := _KERNEL.match(line))]
        if not lines:
            return None
        others = [match["rest"] for match in lines if _kernel(**match.groupdict()) is None]
        types = [[_types(part) for part in (_inputs(rest), _outputs(rest))] for rest in others]
        return sum(bool(set(reads) & set(FLOATS) and set(writes) & set(ACTIVATIONS)) for reads, writes in types)

    def kernel_list(self) -> list[Kernel] | None:
        """Return convolution, GEMM and attention kernels with their data types.

        They are parsed from the builder's undocumented ``Layers:`` message; None if it is absent or different.
        """
        lines = [_KERNEL.match(line) for line in (self._layers or "").splitlines()]
        return [kernel for line in lines if line and (kernel := _kernel(**line.groupdict()))] or None


def readable(messages: list[str], limit: int = 3) -> list[str]:
    """Return messages as single lines, without duplicates and noise; the noise if there is nothing else."""
    lines = [line.strip() for message in messages for line in message.splitlines() if line.strip()]
    useful = [line for line in lines if not _NOISE.search(line)] or lines
    return [line[:400] for line in dict.fromkeys(useful)][:limit]


def _kernel(name: str, kind: str, rest: str) -> Kernel | None:
    group = group_of(kind, name)
    if group not in (ATTENTION, PRODUCTS):
        return None
    constants, _, behind = rest.partition("Constants:")[2].partition("Outputs:")
    types = _DATA_TYPE.findall(_inputs(rest))
    if not types:
        return None
    # A fused residual is an input too, so if the weights (the largest constant) have the type of an input, that is the
    # type of the product. Weights of another type are converted first.
    weights = max(_CONSTANT.findall(constants), key=lambda constant: _elements(constant[0]), default=("", ""))[1]
    data_type = weights if weights in types else types[0]
    layers = tuple(dict.fromkeys(_ONNX_LAYER.findall(behind)))
    kind, writes = "attention" if group == ATTENTION else "conv_gemm", next(iter(_types(_outputs(rest))), "")
    return Kernel(name, kind, _NAMES.get(data_type, data_type), layers, writes)


def _inputs(rest: str) -> str:
    return rest.partition("Constants:")[0]


def _outputs(rest: str) -> str:
    return rest.partition("Outputs:")[2].partition("TacticName:")[0]


def _types(part: str) -> list[str]:
    """Return our names of the data types of tensors."""
    return [_NAMES.get(name, name) for name in _DATA_TYPE.findall(part)]


def _elements(dimensions: str) -> int:
    return math.prod(abs(int(side)) for side in dimensions.split(",") if side.lstrip("-").isdigit())
