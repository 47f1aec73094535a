"""Versions of TensorRT: parsing, and the ONNX operators that each version reads."""

from __future__ import annotations

from collections.abc import Iterable

from radioplat.spec.resolved.number_formats import DATA_TYPES

# First version: newest operator set that its ONNX parser reads, and operators of that set that an export can contain
# and the parser does not read. From docs/operators.md of github.com/onnx/onnx-tensorrt, branches 8.0-GA to
# 10.1-GA ("TensorRT 8.6 supports operators up to Opset 17"), of its release 10.15 for that, and from the notes of
# TensorRT 11.5 (github.com/NVIDIA/TensorRT/releases/tag/v11.5); a version in between behaves as the one before it.
_PARSERS: dict[tuple[int, int], tuple[int, frozenset[str]]] = {
    (8, 0): (13, frozenset()),
    (8, 4): (17, frozenset({"LayerNormalization", "HardSwish", "GridSample", "Mod", "NonZero", "Trilu"})),
    (8, 5): (17, frozenset({"LayerNormalization"})),
    (8, 6): (17, frozenset()),
    (9, 0): (19, frozenset()),
    (10, 0): (20, frozenset()),
    (10, 15): (24, frozenset()),
    (11, 5): (25, frozenset()),
}
LOWEST_OPSET = 17  # lowest possible for an export: see radioplat.exporting.onnx.lower_opset

# TensorRT 11 removed calibrators, calibration caches and the builder's precision flags.
FIRST_WITHOUT_CACHE = 11


def parse_version(text: str) -> tuple[int, int, int] | None:
    """Return major, minor and patch of a version like ``8.6.1``, missing parts as 0; None if it is no version."""
    parts = text.strip().split(".")
    if not 1 <= len(parts) <= 4 or not all(part.isdecimal() for part in parts):
        return None
    major, minor, patch, *_ = [int(part) for part in parts] + [0, 0]
    return major, minor, patch


def newest_opset(version: tuple[int, int, int], formats: Iterable[str] = ()) -> int:
    """Return the newest ONNX operator set that this TensorRT reads.

    It is at least what each of ``formats`` needs, if this TensorRT reads the format: version 10.0 reads set 20, and
    INT4, which ONNX defines from set 21 on.
    """
    known = [row for row in map(DATA_TYPES.__getitem__, formats) if version[0] >= row.first_tensorrt]
    return max([_parser(version)[0], *(row.least_opset for row in known)])


def unread_operators(version: tuple[int, int, int]) -> frozenset[str]:
    """Return the operators that this TensorRT does not read, though its newest operator set contains them."""
    return _parser(version)[1]


def _parser(version: tuple[int, int, int]) -> tuple[int, frozenset[str]]:
    return _PARSERS[max((v for v in _PARSERS if v <= version[:2]), default=min(_PARSERS))]
