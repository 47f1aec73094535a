"""Compute features of images by a TensorRT engine of this folder, or verify and time it.

python3 infer_tensorrt.py IMAGE... [--engine FILE] [--batch N] [--dla-core N] [--out features.npz]
python3 infer_tensorrt.py --verify [--engine FILE] [--batch N] [--dla-core N]

Needs numpy, Pillow, the Python bindings of TensorRT 8.5 or newer (JetPack has them as python3-libnvinfer) and the CUDA
runtime; no PyTorch, no PyCUDA. --verify runs the images of sample.npz, compares the features with those of onnxruntime
and the ONNX file, measures the latency, and prints one JSON object; `radioplat profile FILE.json` shows it.
"""

from __future__ import annotations

import argparse
import ctypes
import ctypes.util
import json
import platform
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np

HERE = Path(__file__).resolve().parent
CALLS = 200
# Calls of one window of the warm-up, which ends when two medians in a row differ by at most STEADY.
WINDOW, STEADY, WARM_UP_SECONDS = 10, 0.03, 3.0
HOST_TO_DEVICE, DEVICE_TO_HOST = 1, 2


class Cuda:
    """The few functions of the CUDA runtime that are needed."""

    def __init__(self) -> None:
        names = [ctypes.util.find_library("cudart"), "libcudart.so", "libcudart.so.13", "libcudart.so.12"]
        self._library = next(filter(None, map(_load, filter(None, names))), None)
        if self._library is None:
            raise SystemExit("error: the CUDA runtime (libcudart.so) cannot be loaded; set LD_LIBRARY_PATH")

    def call(self, name: str, *arguments: Any) -> None:  # noqa: ANN401
        """Call a function; end the program if it fails."""
        status = getattr(self._library, name)(*arguments)
        if status:
            raise SystemExit(f"error: {name} failed with CUDA error {status}")

    def allocate(self, size: int) -> int:
        """Return the address of new memory on the GPU."""
        pointer = ctypes.c_void_p()
        self.call("cudaMalloc", ctypes.byref(pointer), ctypes.c_size_t(size))
        return int(pointer.value or 0)

    def copy(self, target: int, source: int, size: int, kind: int) -> None:
        """Copy, and wait for the end."""
        places = ctypes.c_void_p(target), ctypes.c_void_p(source)
        self.call("cudaMemcpy", *places, ctypes.c_size_t(size), ctypes.c_int(kind))

    def stream(self) -> int:
        """Return a new stream."""
        pointer = ctypes.c_void_p()
        self.call("cudaStreamCreate", ctypes.byref(pointer))
        return int(pointer.value or 0)

    def wait(self, stream: int) -> None:
        """Wait for all work of a stream."""
        self.call("cudaStreamSynchronize", ctypes.c_void_p(stream))


def _load(name: str) -> ctypes.CDLL | None:
    try:
        return ctypes.CDLL(name)
    except OSError:
        return None


class Engine:
    """An engine for batches of one size.

    Attributes:
        batch: images of a call.
        shape: of the images of a call.
        outputs: names.
    """

    def __init__(self, path: Path, batch: int | None = None, dla_core: int | None = None) -> None:
        """Open the engine.

        Args:
            batch: images of a call; None: the number that the engine was optimized for.
            dla_core: for an engine that was built for a DLA: the core that it runs on; None: the default of TensorRT.
        """
        import tensorrt

        self.version = tensorrt.__version__
        self._cuda = Cuda()
        logger = tensorrt.Logger(tensorrt.Logger.ERROR)
        self._runtime = tensorrt.Runtime(logger)
        if dla_core is not None:
            self._runtime.DLA_core = dla_core
        self._engine = self._runtime.deserialize_cuda_engine(path.read_bytes())
        if self._engine is None:
            raise SystemExit(f"error: {path} is for another GPU or TensorRT: run ./build_engine.sh here")
        self._context = self._engine.create_execution_context()
        names = [self._engine.get_tensor_name(i) for i in range(self._engine.num_io_tensors)]
        inputs = [n for n in names if self._engine.get_tensor_mode(n) == tensorrt.TensorIOMode.INPUT]
        self.outputs = [name for name in names if name not in inputs]
        (self._images,) = inputs
        fixed = list(self._engine.get_tensor_shape(self._images))
        smallest, best, largest = [fixed] * 3
        if min(fixed) < 0:
            smallest, best, largest = (list(shape) for shape in self._engine.get_tensor_profile_shape(self._images, 0))
        self.shape = [batch or best[0], *best[1:]]
        self.batch = self.shape[0]
        if not self._context.set_input_shape(self._images, tuple(self.shape)):
            raise SystemExit(
                f"error: {path.name} takes {smallest[0]} to {largest[0]} images at once, not {self.batch}: give --batch"
            )
        self._stream = self._cuda.stream()
        self._arrays = {name: np.empty(tuple(self._context.get_tensor_shape(name)), np.float32) for name in names}
        self._memory = {name: self._cuda.allocate(array.nbytes) for name, array in self._arrays.items()}
        for name, address in self._memory.items():
            self._context.set_tensor_address(name, address)

    def run(self) -> None:
        """Compute, with images that are on the GPU, and wait."""
        if not self._context.execute_async_v3(self._stream):
            raise SystemExit("error: TensorRT failed")
        self._cuda.wait(self._stream)

    def __call__(self, images: np.ndarray) -> dict[str, np.ndarray]:
        """Return the features of float32 ``[batch, 3, H, W]`` in [0, 1]."""
        images = np.ascontiguousarray(images, np.float32)
        self._cuda.copy(self._memory[self._images], images.ctypes.data, images.nbytes, HOST_TO_DEVICE)
        self.run()
        for name in self.outputs:
            array = self._arrays[name]
            self._cuda.copy(array.ctypes.data, self._memory[name], array.nbytes, DEVICE_TO_HOST)
        return {name: self._arrays[name].copy() for name in self.outputs}


def in_batches(engine: Engine, images: np.ndarray) -> dict[str, np.ndarray]:
    """Return the features of any number of images."""
    parts = []
    for start in range(0, len(images), engine.batch):
        part = images[start : start + engine.batch]
        missing = engine.batch - len(part)
        filled = np.concatenate([part, np.zeros((missing, *part.shape[1:]), np.float32)]) if missing else part
        parts.append({name: value[: len(part)] for name, value in engine(filled).items()})
    return {name: np.concatenate([part[name] for part in parts]) for name in engine.outputs}


def verify(engine: Engine, path: Path) -> dict[str, Any]:
    """Compare the features of sample.npz, and measure the latency of a batch with images on the GPU."""
    sample = np.load(HERE / "sample.npz")
    features = in_batches(engine, sample["images"].astype(np.float32) / 255)
    cosines = {name: cosine(value, sample[name]) for name, value in features.items() if name in sample}
    warm_up, steady = until_steady(engine)
    times = [milliseconds(engine) for _ in range(CALLS)]
    p50, p90, p99 = (round(float(value), 4) for value in np.percentile(times, (50, 90, 99)))
    result = {
        "verified": path.name,
        "library": "tensorrt",
        "version": engine.version,
        "machine": machine(),
        "shape": engine.shape,
        "method": "wall time from enqueueing a batch to its end, images and features on the GPU",
        "latency_ms": {"p50": p50, "p90": p90, "p99": p99, "calls": CALLS, "warm_up": warm_up, "steady": steady},
        "least_cosine": {name: round(value, 5) for name, value in cosines.items()},
        "python": platform.python_version(),
    }
    if not cosines:
        result["not_compared"] = str(sample.get("not_compared", "sample.npz has no features of this engine's outputs"))
    return result


def until_steady(engine: Engine) -> tuple[int, bool]:
    """Call until two windows are alike; return the number of calls, and whether they are."""
    until, count, before = time.monotonic() + WARM_UP_SECONDS, 0, 0.0
    while True:
        now = float(np.median([milliseconds(engine) for _ in range(WINDOW)]))
        count += WINDOW
        if abs(now - before) <= STEADY * now:
            return count, True
        if time.monotonic() > until:
            return count, False
        before = now


def milliseconds(engine: Engine) -> float:
    """Return the time of a call."""
    start = time.perf_counter()
    engine.run()
    return 1000 * (time.perf_counter() - start)


def cosine(a: np.ndarray, b: np.ndarray) -> float:
    """Return the least cosine of an image's features."""
    a, b = (x.reshape(len(x), -1).astype(np.float64) for x in (a, b))
    return float(np.min((a * b).sum(1) / (np.linalg.norm(a, axis=1) * np.linalg.norm(b, axis=1))))


def machine() -> str:
    """Return the name of a Jetson, or of this machine."""
    model = Path("/proc/device-tree/model")
    return model.read_text(encoding="utf-8").strip("\0 \n") if model.exists() else platform.platform()


def main() -> int:
    """Read the images and write one array for each output, or verify."""
    about = json.loads((HERE / "preprocessing.json").read_text(encoding="utf-8"))
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("images", nargs="*", metavar="IMAGE")
    parser.add_argument("--engine", type=Path, default=HERE / about["engine"], help="default: %(default)s")
    parser.add_argument("--batch", type=int, help="images of a call; default: what the engine was optimized for")
    parser.add_argument("--dla-core", type=int, help="the DLA core to run on, for an engine that was built for one")
    parser.add_argument("--verify", action="store_true")
    parser.add_argument("--out", default="features.npz", help="default: %(default)s")
    args = parser.parse_args()
    if not args.engine.is_file():
        print(f"error: there is no engine {args.engine}: run ./build_engine.sh first", file=sys.stderr)
        return 1
    engine = Engine(args.engine, args.batch, args.dla_core)
    if args.verify:
        print(json.dumps(verify(engine, args.engine)))
        return 0
    if not args.images:
        parser.error("give images, or --verify")
    from infer_onnxruntime import prepare  # the same preprocessing

    entry = about["input"]
    images = np.stack([prepare(path, entry["height"], entry["width"]) for path in args.images])
    features: dict[str, Any] = in_batches(engine, images)
    np.savez(args.out, **features)
    for name, value in features.items():
        print(f"{name}: {list(value.shape)}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
