"""INT8 ranges for TensorRT 8 to 10 and an ONNX file without Q/DQ nodes: from a cache, a JSON file or images.

Written from TensorRT's documentation and not run yet, like :mod:`radioplat.exporting.engines.backends.tensorrt`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from radioplat.common.atomic_files import written_aside
from radioplat.data.images.decode import BadSample, decode_rgb
from radioplat.errors import EngineError
from radioplat.exporting.engines.backends.network import Build
from radioplat.exporting.engines.interface import SECTION, BuildRequest
from radioplat.exporting.engines.onnx_input import OnnxInput
from radioplat.spec.schema.engine import CalibrationConfig

_WHERE = f"{SECTION}.tensorrt.calibration"
_IMAGES = (".jpg", ".jpeg", ".png", ".webp", ".bmp")


def is_calibrated(config: CalibrationConfig) -> bool:
    """Return whether ``config`` sets ranges that are not in the ONNX file."""
    return bool(config.cal_image_dir or config.cal_cache_file or config.cal_json_file)


def set_ranges(build: Build, request: BuildRequest, file: OnnxInput) -> Any:
    """Set the ranges of the network; return an object that must stay alive until the engine is built.

    Raises:
        EngineError: TensorRT 11, ranges for a file with Q/DQ nodes, or a source that cannot be read.
    """
    config, trt = request.config.calibration, build.trt
    if int(trt.__version__.partition(".")[0]) >= 11:
        raise EngineError(
            f"TensorRT {trt.__version__} reads INT8 ranges from Q/DQ nodes only",
            where=_WHERE,
            hint="Run `radioplat quantize`, then `radioplat export` on the checkpoint that it writes.",
        )
    if file.formats:
        raise EngineError("the ONNX file has its own ranges in Q/DQ nodes", where=_WHERE, hint="Remove these.")
    if config.cal_json_file:
        _apply(build.network, read_ranges(Path(config.cal_json_file)))
        return None
    if file.image_shape[0] not in (-1, config.cal_batch_size):
        message = f"the ONNX file has batch size {file.image_shape[0]}, not {config.cal_batch_size}"
        raise EngineError(message, where=f"{_WHERE}.cal_batch_size")
    calibrator = _calibrator(trt, config, build.shape)
    build.config.int8_calibrator = calibrator
    # Without this profile it calibrates at the optimal batch size of the engine's profile.
    profile = build.builder.create_optimization_profile()
    profile.set_shape(build.network.get_input(0).name, *[(config.cal_batch_size, *build.shape)] * 3)
    build.config.set_calibration_profile(profile)
    return calibrator


def read_ranges(path: Path) -> dict[str, float]:
    """Read magnitudes by tensor from ``ranges.json`` (a list of {tensor, amax, ...}) or TAO's ``tensor_scales``.

    Raises:
        EngineError: it cannot be read, or has no ranges.
    """
    where = f"{_WHERE}.cal_json_file"
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
        if isinstance(content, dict) and isinstance(content.get("tensor_scales"), dict):
            ranges = {str(name): float(value) for name, value in content["tensor_scales"].items()}
        else:
            rows = content.get("ranges", content) if isinstance(content, dict) else content
            # TensorRT computes ranges of weights itself. A tensor that is rounded twice gets the larger range.
            ranges = {}
            for row in (row for row in rows if row.get("kind") != "weight" and not isinstance(row["amax"], list)):
                ranges[row["tensor"]] = max(float(row["amax"]), ranges.get(row["tensor"], 0.0))
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise EngineError(f"{path} has no ranges: {error}", where=where) from error
    if not ranges or not all(np.isfinite(value) and value > 0 for value in ranges.values()):
        raise EngineError(f"{path} has no ranges above 0", where=where, hint="Calibrate again.")
    return ranges


def _apply(network: Any, ranges: dict[str, float]) -> None:
    tensors = [network.get_input(i) for i in range(network.num_inputs)]
    for i in range(network.num_layers):
        layer = network.get_layer(i)
        tensors += [layer.get_output(j) for j in range(layer.num_outputs)]
    known = [tensor for tensor in tensors if tensor.name in ranges]
    if not known:
        hint = "It must come from the same ONNX file."
        raise EngineError("none of its tensors is in the network", where=f"{_WHERE}.cal_json_file", hint=hint)
    for tensor in known:
        tensor.dynamic_range = (-ranges[tensor.name], ranges[tensor.name])


def _calibrator(trt: Any, config: CalibrationConfig, shape: list[int]) -> Any:
    import torch

    cache = Path(config.cal_cache_file) if config.cal_cache_file else None
    if not config.cal_image_dir and not (cache and cache.is_file()):
        raise EngineError(
            f"there is no calibration cache {cache}",
            where=f"{_WHERE}.cal_cache_file",
            hint="`radioplat export` writes one; or give cal_image_dir.",
        )
    batches = image_batches(config, shape)

    class Calibrator(trt.IInt8EntropyCalibrator2):
        def __init__(self) -> None:
            trt.IInt8EntropyCalibrator2.__init__(self)
            self.batch: torch.Tensor | None = None

        def get_batch_size(self) -> int:
            return config.cal_batch_size

        def get_batch(self, names: list[str]) -> list[int] | None:
            images = next(batches, None)
            if images is None:
                return None
            self.batch = batch = torch.from_numpy(images).cuda()  # must stay alive
            return [batch.data_ptr()]

        def read_calibration_cache(self) -> bytes | None:
            return cache.read_bytes() if cache and cache.is_file() else None

        def write_calibration_cache(self, content) -> None:
            if cache and not cache.is_file():
                with written_aside(cache) as aside:
                    aside.write_bytes(bytes(content))

    return Calibrator()


def image_batches(config: CalibrationConfig, shape: list[int]) -> Iterator[np.ndarray]:
    """Load batches of float32 images in [0, 1] from the first files in sorted order.

    Raises:
        EngineError: fewer images than needed, all of them of one colour, or one that cannot be read.
    """
    where = f"{_WHERE}.cal_image_dir"
    files = sorted(f for d in config.cal_image_dir for f in Path(d).rglob("*") if f.suffix.lower() in _IMAGES)
    wanted, size = config.cal_batches * config.cal_batch_size, config.cal_batch_size
    if not config.cal_image_dir:
        return iter(())
    if len(files) < wanted:
        message = f"{wanted} images are needed and there are {len(files)}"
        raise EngineError(message, where=where, hint="Lower cal_batches, or give another folder.")
    if all(np.ptp(_image(file, shape), (1, 2)).max() == 0 for file in files[:wanted]):
        raise EngineError("every image is of one colour, so there are no ranges", where=where, hint="Give photographs.")
    return (np.stack([_image(f, shape) for f in files[start : start + size]]) for start in range(0, wanted, size))


def _image(file: Path, shape: list[int]) -> np.ndarray:
    from PIL import Image

    try:
        image = Image.fromarray(decode_rgb(file.read_bytes()).rgb)
        pixels = np.asarray(image.resize((shape[2], shape[1])), np.float32)
    except (OSError, BadSample) as error:
        raise EngineError(f"{file} cannot be read: {error}", where=f"{_WHERE}.cal_image_dir") from error
    return pixels.transpose(2, 0, 1) / 255
