"""Spec section ``export``."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from radioplat.spec.ranges import number


class CpuQuantization(str, Enum):
    """Quantization to INT8 for onnxruntime on a CPU."""

    dynamic = "dynamic"  # weights; activation ranges are computed for each image. Linear layers only
    static = "static"  # weights and activations, with ranges from real images


class CpuTarget(str, Enum):
    """CPU type that static INT8 is for."""

    x86_vnni = "x86_vnni"  # unsigned activations, signed weights
    x86 = "x86"  # without VNNI: the same with 7-bit weights, so that 16-bit sums do not overflow
    arm = "arm"  # both signed


class ExportFormat(str, Enum):
    """Output of ``export``: an ONNX graph, or weights in the format of another library."""

    onnx = "onnx"
    radio = "radio"  # NVlabs/RADIO's .pth
    hf = "hf"  # a folder for transformers.AutoModel, with its own code
    hf_native = "hf_native"  # a folder for the RadioModel that transformers itself has: the backbone only
    timm = "timm"  # the backbone with timm's parameter names
    safetensors = "safetensors"  # one file


class AdaptorTypes(str, Enum):
    """Types of the adaptors in a file of format ``radio``, by which NVlabs' loader chooses a class for each."""

    generic = "generic"  # the heads alone: the file opens without network
    own = "own"  # for teachers of the CLIP and SigLIP families the class that also has the text tower, and fetches it


@dataclass
class ExportConfig:
    """Spec section ``export``: write a trained student as ONNX, or as weights for other libraries."""

    checkpoint: str | None = None  # checkpoint to read; default: results_dir/distill's (or train's) latest
    results_dir: str | None = None  # folder of this task; default: results_dir/export
    onnx_file: str | None = None  # file to write; default: results_dir/export/student.onnx
    input_channel: int = number(3, at_least=1)  # channels of an image; always 3
    input_width: int | None = number(None, at_least=1, at_most=65_536)  # pixels; default: dataset.img_size
    input_height: int | None = number(None, at_least=1, at_most=65_536)  # pixels; default: dataset.img_size
    # Minimum: 17; 19 for fp8, and for fp16 next to quantized layers; 21 for int4; 22 for bf16; a lower value is raised.
    # Default: 18, or the one that tensorrt_version reads
    opset_version: int | None = number(None, at_least=1)
    batch_size: int = number(-1, at_least=-1)  # fixed batch size of the file; -1: any
    dynamic_resolution: bool = False  # (+) the ONNX file accepts images of any size that is a multiple of the stride
    verbose: bool = False  # show the output of torch's exporter
    # (+) number format of the file: fp32 | fp16 | bf16; of a quantized student, of its other layers. Default:
    # gen_trt_engine.tensorrt.data_type; beside quantized layers fp16, or bf16 where fp16 overflows
    data_type: str | None = None
    # (+) heads to export with the backbone, by teacher name; empty: none for onnx, all for other formats. timm has no
    # heads: for a RADIO ViT the class token of the teacher named here becomes timm's
    adaptors: list[str] = field(default_factory=list)
    adaptor_types: AdaptorTypes = AdaptorTypes.generic  # (+) for format radio: generic | own
    # (+) store a quantized student's weights as integers; false: as floats followed by Q/DQ, for TensorRT before 10
    stored_weights: bool = True
    # (+) also write INT8 scales for TensorRT up to 10, with an ONNX file without Q/DQ: true, or the path
    calibration_cache: str | None = None
    tensorrt_version: str | None = None  # (+) target version, e.g. 8.6.1 or 10.3, for opset, cache and bundle
    # (+) least cosine of a quantized student's file with torch, for each output and calibration image (noise, where the
    # spec names no images)
    least_cosine: float = number(0.98, at_least=0, at_most=1)
    force_ptq: bool = False  # TAO's field: an INT8 scale for every tensor, measured on real images; DLA needs them
    # (+) folder for use without radioplat: graph, scales, preprocessing.json, scripts for trtexec and onnxruntime
    bundle: str | None = None
    cpu: CpuQuantization | None = None  # (+) dynamic | static: also write an INT8 file for onnxruntime on CPUs
    cpu_target: CpuTarget | None = None  # (+) for static: x86_vnni | x86 | arm; default: x86_vnni
    num_tokens: int | None = number(None, at_least=1)  # (+) tokens of a radio1d_vit_* that the file keeps; default: all
    format: ExportFormat = ExportFormat.onnx  # (+)
    output: str | None = None  # (+) output path of formats other than onnx; default: in results_dir/export
    use_ema: bool | None = None  # (+) as evaluate.use_ema

    @property
    def wants_cache(self) -> bool:
        """True if ``calibration_cache`` asks for a cache."""
        return (self.calibration_cache or "false").strip().lower() != "false"
