"""Spec section ``gen_trt_engine``: an ONNX file as an engine."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from radioplat.spec.ranges import number


class EngineBackend(str, Enum):
    """What builds the engine, and later runs it."""

    auto = "auto"  # the first of the others that can work on this machine
    tensorrt = "tensorrt"  # for the GPU at hand
    tensorrt_rtx = "tensorrt_rtx"  # for several GPU generations, without a GPU
    onnxruntime = "onnxruntime"  # an optimized graph for CPUs


@dataclass
class CalibrationConfig:
    """Where TensorRT 8 to 10 takes INT8 ranges from, for an ONNX file without Q/DQ nodes."""

    cal_image_dir: list[str] = field(default_factory=list)  # folders of images to measure ranges on
    cal_cache_file: str | None = None  # read where it exists, else written
    cal_batch_size: int = number(1, at_least=1)
    cal_batches: int = number(1, at_least=1)
    cal_json_file: str | None = None  # ranges.json of `export`, or TAO's {"tensor_scales": {tensor: amax}}


@dataclass
class TensorRTConfig:
    """What the engine may use."""

    # fp32 | fp16 | bf16: what the ONNX file is typed for; int8 | fp8: what its Q/DQ nodes hold
    data_type: str = "fp32"
    workspace_size: int = number(1024, at_least=1)  # MiB of scratch memory on the GPU
    # the batches it accepts, and the one it is tuned for; of no effect on an ONNX file with a fixed batch
    min_batch_size: int = number(1, at_least=1)
    opt_batch_size: int = number(8, at_least=1)
    max_batch_size: int = number(16, at_least=1)
    # pattern:fp32|fp16|bf16, matched against names of nodes and of the student's modules; the last that fits decides
    layers_precision: list[str] = field(default_factory=list)
    calibration: CalibrationConfig = field(default_factory=CalibrationConfig)
    # (+) GPUs the engine is built for, as compute capabilities; auto: of SM86, SM89, SM120 those with the data type
    compute_capabilities: list[str] = field(default_factory=lambda: ["auto"])


@dataclass
class GenTrtEngineConfig:
    """Spec section ``gen_trt_engine``: an ONNX file as an engine."""

    results_dir: str | None = None
    backend: EngineBackend = EngineBackend.auto  # (+)
    gpu_id: int = number(0, at_least=0)  # the GPU that `tensorrt` builds for, and that engines run on
    onnx_file: str | None = None  # default: what `export` wrote
    trt_engine: str | None = None  # default: results_dir/gen_trt_engine/student.engine
    timing_cache: str | None = None  # of `tensorrt`: kernels' timings, read where it exists, and written
    input_channel: int = number(3, at_least=1)
    input_width: int | None = number(None, at_least=1, at_most=65_536)  # default: the ONNX file's
    input_height: int | None = number(None, at_least=1, at_most=65_536)
    opset_version: int = number(18, at_least=1)  # TAO's; the ONNX file has one already
    # above 0: the only batch the engine takes, instead of tensorrt.{min,opt,max}_batch_size
    batch_size: int = number(-1, at_least=-1)
    verbose: bool = False  # let the builder print
    tensorrt: TensorRTConfig = field(default_factory=TensorRTConfig)
