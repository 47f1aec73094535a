"""Run an engine of any backend on images."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from radioplat.errors import EngineError
from radioplat.exporting.engines.engine_record import read_record

Run = Callable[[np.ndarray], dict[str, np.ndarray]]
SESSIONS = {
    "onnxruntime": "radioplat.exporting.engines.backends.onnxruntime_session",
    "openvino": "radioplat.exporting.engines.backends.openvino_session",
    "tensorrt": "radioplat.exporting.engines.backends.tensorrt_session",
    "tensorrt_rtx": "radioplat.exporting.engines.backends.tensorrt_session",
}


class EngineRunner:
    """Calls an engine with any number of images.

    Attributes:
        record: content of ``<engine>.json``.
        device: name of the device.
        image_size: (height, width) of its input.
        outputs: names of its outputs.
        on_device: for an engine on a GPU: a function from a contiguous float32 batch on it, of a size that the engine
            supports, to float32 features by name; enqueued on torch's current stream. None on a CPU.
        bound: for an engine on a CPU: from a contiguous float32 batch, of a size that the engine supports, to a
            function that computes its features and leaves them where the library writes them. None on a GPU.
    """

    def __init__(self, record: dict[str, Any], device: str, run: Run) -> None:
        """Args: ``run`` runs one batch of a size that the engine supports."""
        self.record, self.device, self._run = record, device, run
        self.image_size: tuple[int, int] = tuple(record["input_shape"][1:])
        self.outputs: list[str] = list(record["outputs"])
        self.on_device: Callable[[Any], dict[str, Any]] | None = getattr(run, "on_device", None)
        self.bound: Callable[[np.ndarray], Callable[[], object]] | None = getattr(run, "bound", None)

    def __call__(self, images: np.ndarray) -> dict[str, np.ndarray]:
        """Compute features of ``images``.

        Args:
            images: float32 ``[B, 3, H, W]`` in [0, 1]. More images than the largest batch are split; fewer than the
                smallest batch are padded with the last image, whose features are dropped.

        Returns:
            Float32 ``[B, ...]`` by name of the output.

        Raises:
            EngineError: images of another size or type, or the engine fails.
        """
        self._check(images)
        smallest, _, largest = self.record["batch"]
        parts = []
        for start in range(0, len(images), largest):
            part = images[start : start + largest]
            missing = max(smallest - len(part), 0)
            filled = np.concatenate([part, np.repeat(part[-1:], missing, axis=0)]) if missing else part
            features = self._run(np.ascontiguousarray(filled))
            parts.append({name: value[: len(part)] for name, value in features.items()})
        if len(parts) == 1:
            return parts[0]
        return {name: np.concatenate([part[name] for part in parts]) for name in self.outputs}

    def _check(self, images: np.ndarray) -> None:
        wanted = list(self.record["input_shape"])
        if images.ndim != 4 or list(images.shape[1:]) != wanted or not len(images):
            raise EngineError(f"the engine needs images [B, {', '.join(map(str, wanted))}], not {list(images.shape)}")
        if images.dtype != np.float32:
            raise EngineError(f"the engine needs float32 images in [0, 1], not {images.dtype}")


def load_engine(path: str | Path, *, gpu_id: int = 0) -> EngineRunner:
    """Open an engine of ``gen_trt_engine``.

    Args:
        gpu_id: the GPU to run on; without effect for onnxruntime and openvino.

    Raises:
        EngineError: the engine or its record is missing or corrupt, it is for another GPU, its library is not
            installed, or the driver is missing or too old.
    """
    record = read_record(path)
    module = SESSIONS.get(record.get("library", ""))
    if module is None:
        raise EngineError(f"there is no backend for engines of {record.get('library')!r}", where=str(path))
    device, run = importlib.import_module(module).open_session(Path(path), record, gpu_id)
    return EngineRunner(record, device, run)
