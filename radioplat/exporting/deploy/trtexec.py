"""Command line of ``trtexec`` that builds an engine, by TensorRT version."""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path

from radioplat.exporting.onnx.opset import NEWEST, require_readable
from radioplat.spec.resolved.number_formats import DATA_TYPES
from radioplat.spec.resolved.tensorrt_version import parse_version

FIRST_STRONGLY_TYPED = 9
_SCRIPT = """#!/usr/bin/env bash
# Build an engine for the GPU of this machine with {version}. Further arguments go to trtexec.
set -euo pipefail
cd "$(dirname "$0")"
: "${{TRTEXEC:=trtexec}}"
if ! command -v "$TRTEXEC" >/dev/null; then
  echo "there is no $TRTEXEC on PATH: install TensorRT, or set TRTEXEC" >&2
  exit 1
fi
exec "$TRTEXEC" \\
  {arguments} \\
  "$@"
"""


def arguments(
    onnx_file: Path,
    engine: str,
    shapes: Mapping[str, Sequence[Sequence[int]]],
    *,
    version: str | None,
    data_type: str,
    formats: Sequence[str] = (),
    stored_weights: bool = True,
    cache: str | None = None,
) -> list[str]:
    """Return the arguments of ``trtexec``.

    Args:
        shapes: smallest, optimal and largest shape by input; empty for fixed shapes.
        version: of TensorRT; None for the newest.
        data_type: of the layers that are not quantized; with ``cache`` the type that they may have beside fp32.
        formats: of a graph with Q/DQ.
        cache: a calibration cache, for a graph without.

    Raises:
        EngineError: this TensorRT does not support the graph.
    """
    major = (parse_version(version) if version else None) or NEWEST
    options = [f"--onnx={onnx_file.name}", f"--saveEngine={engine}", "--sparsity=enable"]  # for 2:4 weights
    for name, sizes in zip(("min", "opt", "max"), zip(*shapes.values(), strict=True), strict=False):
        texts = [f"{key}:{'x'.join(map(str, size))}" for key, size in zip(shapes, sizes, strict=True)]
        options.append(f"--{name}Shapes={','.join(texts)}")
    if cache:
        halves = data_type != "fp32" and major[0] >= DATA_TYPES[data_type].first_tensorrt
        return [*options, "--int8", *([f"--{data_type}"] if halves else []), f"--calib={cache}"]
    require_readable(version, data_type, formats, stored_weights)
    if major[0] >= FIRST_STRONGLY_TYPED:
        # Types of the graph. TensorRT 11 has no other mode; the flag was not tried with its trtexec.
        return [*options, "--stronglyTyped"]
    return options + (["--int8"] if formats else []) + (["--fp16"] if data_type == "fp16" else [])


def script(options: Sequence[str], version: str | None) -> str:
    """Return a shell script that calls ``trtexec`` with ``options``."""
    name = f"TensorRT {version}" if version else "TensorRT"
    return _SCRIPT.format(version=name, arguments=" \\\n  ".join(shlex.quote(word) for word in options))
