"""The sides of :mod:`benchmarks.engines_beside_torch`: a student in torch, compiled, and as engines in several formats.

Weights are drawn, not trained: they change no time. Ranges are calibrated on crops of photographs, and each side's
features of other crops are compared with torch's in fp32, so that nothing is timed that computes something else.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image

from radioplat.common.terminal import note
from radioplat.compression.quantization.quantize_model import quantize_model
from radioplat.errors import RadioplatError
from radioplat.exporting.deploy.cpu_int8 import quantize_for_cpu
from radioplat.exporting.engines.backends.onnxruntime import open_session
from radioplat.exporting.engines.build import build_engine
from radioplat.exporting.engines.engine_runner import load_engine
from radioplat.exporting.onnx.export import export_onnx
from radioplat.exporting.onnx.flat_student import FlatStudent
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.quickstart.photographs import PHOTOGRAPHS, crops
from radioplat.spec.schema.engine import EngineBackend, TensorRTConfig
from radioplat.spec.schema.export import CpuQuantization, CpuTarget
from radioplat.spec.schema.quantize import QuantizeConfig

Call = Callable[[Any], Any]
MODELS = {
    # as specs/radio_vit.yaml has it
    "quickstart": StudentArchitecture(
        "radio_vit_tiny_patch16", {"depth": 3}, num_class_tokens=2, cpe_max_size=192, register_multiple=4, img_size=96
    ),
    # of one size: timm exports an antialiased resize of the position table of the others, which TensorRT refuses
    "vit_small": StudentArchitecture("vit_small_patch16_224", {"dynamic_img_size": False}),
    "resnet50": StudentArchitecture("resnet50", {"zero_init_last": False}),  # no branch that is all zeros
}
RTX, TENSORRT = EngineBackend.tensorrt_rtx, EngineBackend.tensorrt
NAMES = {TENSORRT: "TensorRT", RTX: "TensorRT-RTX"}
GPU_FORMATS = ("fp16", "int8", "fp8")
CPU_SIDES = ("torch fp32", "compiled fp32", "engine fp32", "engine int8 Q/DQ", "static int8", "dynamic int8")
GPU_SIDES = (
    "torch fp16",
    "compiled fp16",
    "compiled fp16, CUDA graphs",
    *(f"{name} {format}" for name in NAMES.values() for format in GPU_FORMATS),
)
_CALIBRATION_BATCH = 8


@dataclass
class Side:
    """One way to compute the student's features.

    Attributes:
        label: its name in the tables.
        calls: by batch size: a function of images, float32 ``[B, 3, H, W]`` in [0, 1]; a numpy array for those of
            onnxruntime, else a tensor on the device.
        takes_arrays: whether they are numpy arrays.
        reason: why it is not measured; empty where it is.
        cosine: its features' with torch's in fp32, mean over images, at worst over outputs.
    """

    label: str
    calls: dict[int, Call] = field(default_factory=dict)
    takes_arrays: bool = False
    reason: str = ""
    cosine: float = float("nan")


def make_images(size: int, held_out: bool, each: int) -> torch.Tensor:
    """uint8 ``[N, 3, size, size]``: ``each`` crops of every photograph of the quickstart."""
    found = [
        np.asarray(crop.resize((size, size), Image.Resampling.BICUBIC)).transpose(2, 0, 1)
        for photograph in PHOTOGRAPHS
        for crop in crops(photograph, held_out, each, seed=0)
    ]
    return torch.from_numpy(np.stack(found))


def make_sides(model: str, device: str, batches: list[int], folder: Path) -> tuple[list[Side], torch.Tensor]:
    """All sides, those with a ``reason`` too, and the images that they are timed on, float32 on the CPU."""
    torch.manual_seed(0)
    student = Student(MODELS[model]).eval()
    size = MODELS[model].img_size
    images = make_images(size, held_out=True, each=-(-max(batches) // len(PHOTOGRAPHS))).float() / 255
    maker = _OnGpu if device == "cuda" else _OnCpu
    sides = maker(student, size, batches, folder).sides()
    flat = FlatStudent(student, [])
    batch = images[: batches[-1]]
    with torch.inference_mode():
        wanted = [tensor.numpy() for tensor in flat(batch)]
        for side in (side for side in sides if not side.reason):
            given = batch.numpy() if side.takes_arrays else batch.to(device)
            side.cosine = min(map(_cosine, _arrays(side.calls[len(batch)](given)), wanted))
    return sides, images


class _Maker:
    """Students, files and engines in one folder."""

    def __init__(self, student: Student, size: int, batches: list[int], folder: Path) -> None:
        self._student, self._size, self._batches, self._folder = student, size, batches, folder
        self._calibration = make_images(size, held_out=False, each=2).split(_CALIBRATION_BATCH)

    def sides(self) -> list[Side]:
        """Those of this device; one that the library or the machine has no way for says so in its ``reason``."""
        found = []
        for label, make in self._makers():
            note(f"making {label}")
            try:
                found.append(make(label))
            except RadioplatError as error:
                found.append(Side(label, reason=str(error.problems[0].message)))
        return found

    def _makers(self) -> Iterator[tuple[str, Callable[[str], Side]]]:
        raise NotImplementedError

    def _same(self, label: str, call: Call, takes_arrays: bool = False) -> Side:
        return Side(label, dict.fromkeys(self._batches, call), takes_arrays)

    def _file(self, format: str, rest: str) -> Path:
        """The ONNX file of ``format``, written once; layers that stay float compute in ``rest``."""
        path = self._folder / f"{format}_{rest}.onnx"
        if not path.exists():
            student = self._student
            if format in ("int8", "fp8"):
                asked = QuantizeConfig(default_layer_dtype={"int8": "int8", "fp8": "fp8_e4m3fn"}[format])
                student = quantize_model(student, asked, list(self._calibration)).model
            export_onnx(student, path, height=self._size, width=self._size, data_type=rest)
        return path

    def _build(self, label: str, format: str, rest: str, backend: EngineBackend, targets: list[str]) -> dict[int, Path]:
        """An engine for each batch size, tuned for it alone, as torch compiles one for each."""
        source, found = self._file(format, rest), {}
        for batch in self._batches:
            config = TensorRTConfig(
                data_type=format,
                min_batch_size=batch,
                opt_batch_size=batch,
                max_batch_size=batch,
                compute_capabilities=targets,
            )
            found[batch] = self._folder / f"{label.replace(' ', '_').replace('/', '')}_{batch}.engine"
            build_engine(source, found[batch], config, backend=backend)
        return found


class _OnCpu(_Maker):
    def _makers(self) -> Iterator[tuple[str, Callable[[str], Side]]]:
        flat = FlatStudent(self._student, [])
        yield "torch fp32", lambda label: self._same(label, flat)
        yield "compiled fp32", lambda label: self._same(label, torch.compile(flat, dynamic=False))
        yield "engine fp32", lambda label: self._engine(label, "fp32")
        yield "engine int8 Q/DQ", lambda label: self._engine(label, "int8")
        yield "static int8", lambda label: self._for_cpu(label, CpuQuantization.static)
        yield "dynamic int8", lambda label: self._for_cpu(label, CpuQuantization.dynamic)

    def _engine(self, label: str, format: str) -> Side:
        engines = self._build(label, format, "fp32", EngineBackend.onnxruntime, TensorRTConfig().compute_capabilities)
        return Side(label, {batch: load_engine(path) for batch, path in engines.items()}, takes_arrays=True)

    def _for_cpu(self, label: str, method: CpuQuantization) -> Side:
        path = self._folder / f"cpu_{method.value}.onnx"
        has_vnni = torch.cpu.get_capabilities().get("avx512_vnni") or torch.cpu.get_capabilities().get("avx_vnni")
        target = CpuTarget.x86_vnni if has_vnni else CpuTarget.x86
        batches = [batch.numpy().astype(np.float32) / 255 for batch in self._calibration]
        quantize_for_cpu(self._file("fp32", "fp32"), path, method, target, batches)
        session = open_session(path, "all")
        name = session.get_inputs()[0].name
        return self._same(label, lambda images: session.run(None, {name: images}), takes_arrays=True)


class _OnGpu(_Maker):
    def _makers(self) -> Iterator[tuple[str, Callable[[str], Side]]]:
        flat = FlatStudent(self._student, []).half().cuda()
        yield "torch fp16", lambda label: self._same(label, flat)
        yield "compiled fp16", lambda label: self._same(label, torch.compile(flat, dynamic=False))
        graphs = copy.deepcopy(flat)
        compiled = torch.compile(graphs, dynamic=False, mode="reduce-overhead")
        yield "compiled fp16, CUDA graphs", lambda label: self._same(label, compiled)
        for backend, name in NAMES.items():
            for format in GPU_FORMATS:
                yield f"{name} {format}", lambda label, b=backend, f=format: self._engine(label, f, b)

    def _engine(self, label: str, format: str, backend: EngineBackend) -> Side:
        here = "SM{}{}".format(*torch.cuda.get_device_capability())
        targets = [here] if backend is RTX else TensorRTConfig().compute_capabilities
        engines = self._build(label, format, "fp16", backend, targets)
        calls: dict[int, Call] = {}
        for batch, path in engines.items():
            on_device = load_engine(path).on_device
            assert on_device is not None, "an engine of TensorRT runs on tensors"
            calls[batch] = on_device
        return Side(label, calls)


def _arrays(found: Any) -> list[np.ndarray]:
    """Outputs in the order of the ONNX file's, which is torch's."""
    values = found.values() if isinstance(found, dict) else found
    return [v.float().cpu().numpy() if isinstance(v, torch.Tensor) else v for v in values]


def _cosine(a: np.ndarray, b: np.ndarray) -> float:
    x, y = (values.reshape(len(values), -1).astype(np.float64) for values in (a, b))
    return float(((x * y).sum(1) / (np.linalg.norm(x, axis=1) * np.linalg.norm(y, axis=1))).mean())
