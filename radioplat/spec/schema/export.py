"""Spec section ``export``."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from radioplat.spec.ranges import number


class CpuQuantization(str, Enum):
    """How a student becomes INT8 for onnxruntime on a CPU."""

    dynamic = "dynamic"  # weights; ranges of activations anew from each image. Linear layers alone
    static = "static"  # weights and activations, with ranges from real images


class CpuTarget(str, Enum):
    """The CPU that static INT8 is for."""

    x86_vnni = "x86_vnni"  # unsigned activations, signed weights
    x86 = "x86"  # without VNNI: the same with weights of 7 bits, so that 16-bit sums do not overflow
    arm = "arm"  # both signed


class ExportFormat(str, Enum):
    """What ``export`` writes: a graph, or weights in a form that others load."""

    onnx = "onnx"
    radio = "radio"  # NVlabs/RADIO's .pth
    hf = "hf"  # a folder for transformers.AutoModel
    timm = "timm"  # the backbone under timm's names
    safetensors = "safetensors"  # one file


@dataclass
class ExportConfig:
    """Spec section ``export``: a trained student as ONNX, or as weights that others load."""

    checkpoint: str | None = None
    results_dir: str | None = None
    onnx_file: str | None = None  # default: results_dir/export/student.onnx
    input_channel: int = number(3, at_least=1)
    input_width: int | None = number(None, at_least=1, at_most=65_536)  # default: dataset.img_size
    input_height: int | None = number(None, at_least=1, at_most=65_536)
    # 17 at the lowest, 19 for fp8 and beside quantized layers fp16, 21 for int4, 22 for bf16; a lower one is raised.
    # Default: 18, or what tensorrt_version reads
    opset_version: int | None = number(None, at_least=1)
    batch_size: int = number(-1, at_least=-1)  # -1: dynamic
    dynamic_resolution: bool = False  # (+) the ONNX file takes images of any size, in whole strides
    on_cpu: bool = True  # TAO's; the student is traced on the CPU either way
    verbose: bool = False  # let torch's exporter print
    # (+) fp32 | fp16 | bf16, what the file computes in; default: gen_trt_engine.tensorrt.data_type
    data_type: str | None = None
    # (+) heads to export beside the backbone, by teacher name; none named: none with onnx, else all. timm has no heads:
    # of a RADIO ViT the class token of the one named here becomes timm's
    adaptors: list[str] = field(default_factory=list)
    # (+) a quantized student's weights as quantized numbers; false: as floats behind Q/DQ, for TensorRT before 10
    stored_weights: bool = True
    # (+) INT8 scales for TensorRT up to 10, beside an ONNX file without Q/DQ: true, or the file to write
    calibration_cache: str | None = None
    tensorrt_version: str | None = None  # (+) that files are for, as 8.6.1 or 10.3: opset, cache, bundle
    force_ptq: bool = False  # TAO's: an INT8 scale for every tensor, measured on real images; DLA asks for them
    # (+) a folder that needs no radioplat: graph, scales, preprocessing.json, scripts for trtexec and onnxruntime
    bundle: str | None = None
    cpu: CpuQuantization | None = None  # (+) dynamic | static: an INT8 file for onnxruntime on CPUs, too
    cpu_target: CpuTarget | None = None  # (+) of static: x86_vnni | x86 | arm; default: x86_vnni
    format: ExportFormat = ExportFormat.onnx  # (+)
    output: str | None = None  # (+) what formats other than onnx write; default: in results_dir/export
    use_ema: bool | None = None  # (+) as evaluate.use_ema

    @property
    def wants_cache(self) -> bool:
        """Whether a calibration cache is asked for by name."""
        return (self.calibration_cache or "false").strip().lower() != "false"
