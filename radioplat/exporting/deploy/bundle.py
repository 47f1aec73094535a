"""Bundle: a folder to run an exported student without radioplat."""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from radioplat.common.atomic_files import written_aside
from radioplat.errors import EngineError
from radioplat.exporting.deploy import infer_onnxruntime, infer_tensorrt, triton
from radioplat.exporting.deploy.trtexec import arguments, script
from radioplat.exporting.onnx.precision import write_in_fp32
from radioplat.exporting.reference_session import open_reference

PREPROCESSING, BUILD, VERIFY, SAMPLE = "preprocessing.json", "build_engine.sh", "verify.sh", "sample.npz"
TRITON = "triton"
SCRIPTS = (infer_onnxruntime, infer_tensorrt)
SAMPLED = 2  # images in the sample
NOT_COMPARED = "not_compared"  # in the sample: why it has no features
_VERIFY = """#!/usr/bin/env bash
# Build an engine on this machine, also for Triton (triton/), compare its features with those of the ONNX file, and
# measure its latency.
# The last line on stdout is one JSON object. Further arguments go to trtexec; the engine that it builds is asked for
# its batch size, and runs on the core of --useDLACore=N.
set -euo pipefail
cd "$(dirname "$0")"
core=()
for word in "$@"; do
  case "$word" in --useDLACore=*) core=(--dla-core "${{word#--useDLACore=}}") ;; esac
done
{note}./build_engine.sh "$@" >&2
mkdir -p triton/{name}/1
cp {name}.engine triton/{name}/1/model.plan
exec "${{PYTHON:-python3}}" infer_tensorrt.py --verify ${{core[@]+"${{core[@]}}"}}
"""


@dataclass(frozen=True)
class Bundled:
    """Content of a bundle.

    Attributes:
        onnx_file: the graph for onnxruntime.
        engine_file: the graph to build engines from: the same, or with ``cache`` the one without Q/DQ.
        others: further files to copy.
        cache: a calibration cache for ``engine_file``.
        inputs, outputs: shapes by name, of ``onnx_file``; a dynamic dimension is given by its name.
        size: height and width in pixels.
        batches: smallest, optimal and largest batch size of an engine.
        step: pixels that dynamic sides must be a multiple of.
        mean, std: of the normalisation, which is in the graph.
        version: of TensorRT; None for the newest.
        data_type: of what is not quantized in an engine.
        formats, stored_weights: of ``onnx_file``.
    """

    onnx_file: Path
    engine_file: Path
    others: Sequence[Path]
    cache: Path | None
    inputs: Mapping[str, Sequence[int | str]]
    outputs: Mapping[str, Sequence[int | str]]
    size: tuple[int, int]
    batches: tuple[int, int, int]
    step: int
    mean: Sequence[float]
    std: Sequence[float]
    version: str | None
    data_type: str
    formats: Sequence[str]
    stored_weights: bool


def write_bundle(folder: Path, content: Bundled) -> Path:
    """Write a bundle to ``folder``, replacing an earlier one.

    Raises:
        EngineError: it cannot be written, or this TensorRT does not support the graph.
    """
    name = content.engine_file.stem
    command = arguments(
        content.engine_file,
        f"{name}.engine",
        _shapes(content),
        version=content.version,
        data_type=content.data_type,
        formats=content.formats,
        stored_weights=content.stored_weights,
        cache=content.cache.name if content.cache else None,
    )
    try:
        folder.mkdir(parents=True, exist_ok=True)
        files = {content.onnx_file, content.engine_file, *content.others, *([content.cache] if content.cache else [])}
        weights = {file.with_name(f"{file.name}.data") for file in files}
        for file in files | {file for file in weights if file.exists()}:
            if file.resolve() != (folder / file.name).resolve():
                with written_aside(folder / file.name) as aside:
                    shutil.copyfile(file, aside)
        _write(folder / PREPROCESSING, json.dumps(_preprocessing(content), indent=1))
        (folder / TRITON / name).mkdir(parents=True, exist_ok=True)
        text = triton.config(name, content.inputs, content.outputs, content.size, content.batches)
        _write(folder / TRITON / name / "config.pbtxt", text)
        for module in SCRIPTS:
            source = Path(str(module.__file__))
            _write(folder / source.name, source.read_text(encoding="utf-8"))
        for script_name, text in (
            (BUILD, script(command, content.version)),
            (VERIFY, _VERIFY.format(name=name, note=_dla_note(content))),
        ):
            _write(folder / script_name, text)
            (folder / script_name).chmod(0o755)
        with written_aside(folder / SAMPLE) as aside, aside.open("wb") as opened:
            arrays: dict[str, Any] = _sample(content)
            np.savez(opened, **arrays)
    except OSError as error:
        raise EngineError(f"cannot write here: {error.strerror}", where="export.bundle") from error
    return folder


def _write(path: Path, text: str) -> None:
    with written_aside(path) as aside:
        aside.write_text(text, encoding="utf-8")


def _sample(content: Bundled) -> dict[str, np.ndarray]:
    """Return images, uint8, and the features that onnxruntime computes of them with ``onnx_file``.

    It computes none in bf16: such a graph is computed in fp32. Where onnxruntime fails, ``not_compared`` is the reason,
    in place of features; ``verify.sh`` prints it.
    """
    (name, shape), *_ = content.inputs.items()
    count = shape[0] if isinstance(shape[0], int) else SAMPLED
    coarse = np.random.default_rng(0).integers(0, 256, (count, 3, 8, 8), np.uint8)
    height, width = content.size
    rows, columns = (np.arange(side) * 8 // side for side in (height, width))
    images = coarse[:, :, rows][:, :, :, columns]  # areas of one colour: noise has little that a network responds to
    try:
        with tempfile.TemporaryDirectory(prefix="radioplat-") as scratch:
            file = content.onnx_file
            if content.data_type == "bf16":
                file = write_in_fp32(file, Path(scratch) / file.name)
            session = open_reference(file, "export.bundle")
        values = session.run(None, {name: images.astype(np.float32) / 255})
    except Exception as error:  # noqa: BLE001 - its errors have no common base class
        reason = f"onnxruntime did not compute them when the bundle was written: {' '.join(str(error).split())[:200]}"
        return {"images": images, NOT_COMPARED: np.array(reason)}
    outputs = [output.name for output in session.get_outputs()]
    return {"images": images, **dict(zip(outputs, values, strict=True))}


def _shapes(content: Bundled) -> dict[str, list[list[int]]]:
    (name, shape), *_ = content.inputs.items()
    if all(isinstance(side, int) for side in shape):
        return {}
    return {name: [[size, 3, *content.size] for size in _batches(content)]}


def _batches(content: Bundled) -> tuple[int, int, int]:
    """Return the smallest, optimal and largest batch size of the engine that ``build_engine.sh`` builds."""
    (shape, *_) = content.inputs.values()
    batch = shape[0]
    return (batch,) * 3 if isinstance(batch, int) else content.batches


def _dla_note(content: Bundled) -> str:
    """Return the line of ``verify.sh`` about an engine of several batch sizes, of which a DLA computes nothing."""
    smallest, _, largest = _batches(content)
    if smallest == largest:
        return ""
    text = f"warning: the DLA computes batches of one size, and this engine takes {smallest} to {largest} images: its"
    text += " layers may all run on the GPU; export again with export.batch_size"
    return f'[[ ${{#core[@]}} == 0 ]] || echo "{text}" >&2\n'


def _preprocessing(content: Bundled) -> dict:
    (name, shape), *_ = content.inputs.items()
    height, width = content.size
    dynamic = not isinstance(shape[2], int)
    return {
        "onnx": content.onnx_file.name,
        "engine": f"{content.engine_file.stem}.engine",
        "engine_batch": dict(zip(("min", "opt", "max"), _batches(content), strict=True)),
        "input": {
            "name": name,
            "shape": list(shape),
            "batch": shape[0] if isinstance(shape[0], int) else None,
            "height": height,
            "width": width,
            "multiple_of": content.step if dynamic else None,
            "dtype": "float32",
            "layout": "NCHW",
            "color": "RGB",
            "range": [0, 1],
        },
        "resize": {
            "rule": "the centred part of the image that has the shape height:width, resized to height x width",
            "filter": "bilinear, antialiased (a triangle over the pixels that are merged; Pillow's BILINEAR)",
        },
        "normalisation": {
            "mean": list(content.mean),
            "std": list(content.std),
            "where": "inside the graph: do not apply it again",
        },
        "outputs": {name: {"shape": list(shape), "dtype": "float32"} for name, shape in content.outputs.items()},
    }
