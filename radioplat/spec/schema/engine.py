"""Spec section ``gen_trt_engine``: build an engine from an ONNX file."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from radioplat.spec.ranges import number


class EngineBackend(str, Enum):
    """Toolkit that builds the engine and later runs it."""

    auto = "auto"  # the first of the next three that works on this machine
    tensorrt = "tensorrt"  # for the GPU of this machine
    tensorrt_rtx = "tensorrt_rtx"  # for several GPU generations, without a GPU
    onnxruntime = "onnxruntime"  # an optimized graph for CPUs
    openvino = "openvino"  # for CPUs: fast INT8 for CNNs too


@dataclass
class CalibrationConfig:
    """Source of INT8 ranges for TensorRT 8 to 10, for an ONNX file without Q/DQ nodes."""

    cal_image_dir: list[str] = field(default_factory=list)  # folders of images to measure ranges on
    cal_cache_file: str | None = None  # read if it exists, else written
    cal_batch_size: int = number(1, at_least=1)  # images of a batch
    cal_batches: int = number(1, at_least=1)  # number of batches
    cal_json_file: str | None = None  # ranges.json of `export`, or TAO's {"tensor_scales": {tensor: amax}}


@dataclass
class TensorRTConfig:
    """Build settings of the engine."""

    # fp32 | fp16 | bf16: type of the ONNX file's tensors; int8 | fp8: type of its Q/DQ nodes
    data_type: str = "fp32"
    workspace_size: int = number(1024, at_least=1)  # MiB of scratch memory on the GPU
    # accepted batch sizes, and the one to optimize for; no effect on an ONNX file with a fixed batch size
    min_batch_size: int = number(1, at_least=1)
    opt_batch_size: int = number(8, at_least=1)  # the batch size that kernels are chosen for
    max_batch_size: int = number(16, at_least=1)  # the largest batch size that the engine accepts
    # pattern:fp32|fp16|bf16, matched with names of nodes and of the student's modules; the last match applies
    layers_precision: list[str] = field(default_factory=list)
    calibration: CalibrationConfig = field(default_factory=CalibrationConfig)
    # (+) for `tensorrt` on a Jetson: the DLA core to run on; layers that it cannot compute run on the GPU
    dla_core: int | None = number(None, at_least=0)
    # (+) compute capabilities to build for; auto: those of SM86, SM89 and SM120 that support the data type
    compute_capabilities: list[str] = field(default_factory=lambda: ["auto"])


@dataclass
class GenTrtEngineConfig:
    """Spec section ``gen_trt_engine``: build an engine from an ONNX file."""

    results_dir: str | None = None  # folder of this task; default: results_dir/gen_trt_engine
    backend: EngineBackend = EngineBackend.auto  # (+)
    gpu_id: int = number(0, at_least=0)  # GPU that `tensorrt` builds for and that engines run on
    onnx_file: str | None = None  # file to read; default: the one that `export` wrote
    trt_engine: str | None = None  # file to write; default: results_dir/gen_trt_engine/student.engine
    timing_cache: str | None = None  # for `tensorrt`: kernel timings, read if the file exists, and written
    input_channel: int = number(3, at_least=1)  # channels of an image; always 3
    input_width: int | None = number(None, at_least=1, at_most=65_536)  # pixels; default: those of the ONNX file
    input_height: int | None = number(None, at_least=1, at_most=65_536)  # pixels; unset: that of the ONNX file
    opset_version: int = number(18, at_least=1)  # TAO's field; the ONNX file already has one
    # above 0: the only batch size of the engine, instead of tensorrt.{min,opt,max}_batch_size
    batch_size: int = number(-1, at_least=-1)
    verbose: bool = False  # let the builder print
    # (+) seconds of measuring latency for each precision and batch size, where the engine runs on this machine: its own
    # beside those of the same graph in fp32, fp16 and bf16; 0: none
    latency_seconds: float = number(0.5, at_least=0)
    tensorrt: TensorRTConfig = field(default_factory=TensorRTConfig)
