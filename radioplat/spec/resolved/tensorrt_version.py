"""Versions of TensorRT as a spec writes them."""

from __future__ import annotations

from collections.abc import Iterable

from radioplat.spec.resolved.number_formats import DATA_TYPES

# The newest operator set that the ONNX parser of a version reads, from that version on, and operators of that set that
# it does not read and an export can hold. From docs/operators.md of github.com/onnx/onnx-tensorrt, branches 8.0-GA to
# 10.1-GA ("TensorRT 8.6 supports operators up to Opset 17"), of its release 10.15 for that, and from the notes of
# TensorRT 11.5 (github.com/NVIDIA/TensorRT/releases/tag/v11.5); a version in between has what the one before it has.
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
LOWEST_OPSET = 17  # that an export can be written in: see radioplat.exporting.onnx.lower_opset

# TensorRT 11 removed calibrators, calibration caches and the builder's precision flags.
FIRST_WITHOUT_CACHE = 11


def parse_version(text: str) -> tuple[int, int, int] | None:
    """``8.6.1`` as numbers, what is left out being 0; None for what is no version."""
    parts = text.strip().split(".")
    if not 1 <= len(parts) <= 4 or not all(part.isdecimal() for part in parts):
        return None
    major, minor, patch, *_ = [int(part) for part in parts] + [0, 0]
    return major, minor, patch


def newest_opset(version: tuple[int, int, int], formats: Iterable[str] = ()) -> int:
    """The newest ONNX operator set that this TensorRT reads: at least what each of ``formats`` needs that it knows.

    The changelog of its parser has INT4 in version 10.0, which reads set 20, and ONNX has INT4 from set 21 on.
    """
    known = [row for row in map(DATA_TYPES.__getitem__, formats) if version[0] >= row.first_tensorrt]
    return max([_parser(version)[0], *(row.least_opset for row in known)])


def unread_operators(version: tuple[int, int, int]) -> frozenset[str]:
    """Operators that this TensorRT does not read, though they are in the newest operator set that it reads."""
    return _parser(version)[1]


def _parser(version: tuple[int, int, int]) -> tuple[int, frozenset[str]]:
    return _PARSERS[max((v for v in _PARSERS if v <= version[:2]), default=min(_PARSERS))]
