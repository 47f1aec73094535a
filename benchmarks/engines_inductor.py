"""Is a vision transformer in INT8 or FP8 faster than in bf16 on this GPU, compiled by inductor?

``python -m benchmarks.engines_inductor [--models vit_small vit_large] [--batches 1 8 64] [--autotune] [--out FILE]``.
TensorRT for RTX has no kernels for data-centre GPUs (SM90), so inductor stands in: a student is quantized as
``radioplat quantize`` does it, and its linear layers multiply in the format, with the student's own weights and
scales (``torch._int_mm``, ``torch._scaled_mm``); all else is bf16. torchao's own INT8 and FP8 (a scale for each
token, which it computes while it runs) take turns with them on the same weights. The blocks of every side are
compiled. The products are those of cuBLAS; with ``--autotune`` triton's take part (``max-autotune``), and the INT8
ones scale their results before they write them: minutes for each side. Each side is timed by radioplat's own method,
CUDA events around a CUDA graph; triton's ``do_bench_cudagraph``, a clock that is not radioplat's, times bf16 and INT8
too. On a CPU a tiny model runs, to test the code: those figures say nothing of a GPU.

The last line on stdout is one JSON object: by model and batch size the medians in milliseconds by side, ``cosine`` of
each side's features with fp32's, ``int8_over_bf16`` and ``fp8_over_bf16`` (how many times as fast as bf16), and
``agreement`` (largest relative difference of radioplat's medians from triton's).
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import nn

from benchmarks.engines_sides import make_images
from radioplat.compression.quantization.quantize_model import quantize_model
from radioplat.exporting.engines.latency import timer
from radioplat.exporting.latency import measure_in_turn
from radioplat.exporting.onnx.flat_student import FlatStudent
from radioplat.models.quantized.layers import QuantizedLinear
from radioplat.models.quantized.quantizer import quantizers
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.schema.quantize import QuantizeConfig

FIXED = {"dynamic_img_size": False}
MODELS = {
    "tiny": StudentArchitecture("vit_tiny_patch16_224", {**FIXED, "depth": 2, "img_size": 96}, img_size=96),
    "vit_small": StudentArchitecture("vit_small_patch16_224", FIXED, img_size=224),
    "vit_base": StudentArchitecture("vit_base_patch16_224", FIXED, img_size=224),
    "vit_large": StudentArchitecture("vit_large_patch16_224", FIXED, img_size=224),
}
FORMATS = {"int8": "int8", "fp8": "fp8_e4m3fn"}
Call = Callable[[torch.Tensor], tuple[torch.Tensor, ...]]


class Int8Linear(nn.Module):
    """A quantized linear layer that multiplies INT8 by INT8: ``x [..., in]`` bf16 to ``[..., out]`` bf16."""

    fp32 = ("inverse",)

    def __init__(self, layer: QuantizedLinear) -> None:
        super().__init__()
        step, weights = layer.input_quantizer.settled_scale(), layer.weight_quantizer.settled_scale()
        whole = (layer.weight / weights[:, None]).round().clamp(-128, 127).to(torch.int8)
        self.register_buffer("weight", whole)
        self.register_buffer("inverse", (1 / step).reshape(()))
        self.register_buffer("scale", (step * weights).bfloat16())
        self.register_buffer("bias", layer.bias.detach().bfloat16())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Round, multiply, scale, add."""
        rounded = (x.float() * self.inverse).round().clamp(-128, 127).to(torch.int8)
        rows = rounded.reshape(-1, rounded.shape[-1])
        found = torch._int_mm(rows, self.weight.t()) * self.scale + self.bias
        return found.reshape(*x.shape[:-1], -1)


class Fp8Linear(nn.Module):
    """A quantized linear layer that multiplies FP8 (e4m3) by FP8: ``x [..., in]`` bf16 to ``[..., out]`` bf16."""

    fp32 = ("inverse", "step", "scale")

    def __init__(self, layer: QuantizedLinear) -> None:
        super().__init__()
        step, weights = layer.input_quantizer.settled_scale(), layer.weight_quantizer.settled_scale()
        self.register_buffer("weight", (layer.weight / weights[:, None]).clamp(-448, 448).to(torch.float8_e4m3fn))
        self.register_buffer("inverse", (1 / step).reshape(()))
        self.register_buffer("step", step.reshape(1, 1).float())
        self.register_buffer("scale", weights.reshape(1, -1).float())
        self.register_buffer("bias", layer.bias.detach().bfloat16())

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Round, multiply, scale, add; the last three in one kernel."""
        rounded = (x.float() * self.inverse).clamp(-448, 448).to(torch.float8_e4m3fn)
        rows = rounded.reshape(-1, rounded.shape[-1])
        steps = self.step.expand(len(rows), 1).contiguous()
        found = torch._scaled_mm(rows, self.weight.t(), steps, self.scale, self.bias, out_dtype=torch.bfloat16)
        return found.reshape(*x.shape[:-1], -1)


def main() -> None:
    """Make, measure, print."""
    gpu = torch.cuda.is_available()
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument(
        "--models", nargs="+", choices=tuple(MODELS), default=["vit_small", "vit_large"] if gpu else ["tiny"]
    )
    parser.add_argument("--batches", type=int, nargs="+", default=[1, 8, 64] if gpu else [1, 2])
    parser.add_argument("--seconds", type=float, default=1.0, help="of a side at a batch size")
    parser.add_argument("--limit", type=float, default=float("inf"), help="seconds, after which no side is compiled")
    parser.add_argument("--autotune", action="store_true", help="choose among triton's kernels for each product")
    parser.add_argument("--out", type=Path, help="file for the JSON, written after each batch size")
    given = parser.parse_args()
    device = "cuda" if gpu else "cpu"
    found: dict[str, Any] = {"device": torch.cuda.get_device_name() if gpu else "cpu", "torch": torch.__version__}
    end = time.monotonic() + given.limit
    for name in given.models:
        begin = time.monotonic()
        for figures in measure(MODELS[name], device, given, end):
            found[name] = {**figures, "seconds": round(time.monotonic() - begin, 1)}
            if given.out:
                given.out.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    print(json.dumps(found))


@torch.no_grad()
def measure(
    architecture: StudentArchitecture, device: str, given: argparse.Namespace, end: float
) -> Iterator[dict[str, Any]]:
    """Yield the figures of one model after each side at each batch size; after ``end`` (monotonic) none is compiled."""
    torch._inductor.config.force_fuse_int_mm_with_mul = given.autotune
    torch._dynamo.config.recompile_limit = 32  # of a block: each side is one more
    torch.manual_seed(0)
    student = Student(architecture).eval()
    images = make_images(architecture.img_size, held_out=True, each=-(-max(*given.batches, 8) // 8)).float() / 255
    models, missing = make(student, device)
    wanted = [tensor.flatten(1) for tensor in FlatStudent(student)(images[:8])]
    found: dict[str, Any] = {"missing": missing, "cosine": {}, "batches": {}}
    for name, model in models.items():
        ours = [tensor.float().cpu().flatten(1) for tensor in model(images[:8].to(device))]
        values = [torch.cosine_similarity(a, b).mean().item() for a, b in zip(ours, wanted, strict=True)]
        found["cosine"][name] = round(min(values), 5)
    for batch in given.batches:
        torch._dynamo.reset()
        compiled = {name: compile_side(model, given.autotune and device == "cuda") for name, model in models.items()}
        for figures in times_of(compiled, architecture.img_size, batch, device, given.seconds, end):
            found["batches"][str(batch)] = figures
            yield found


def make(student: Student, device: str) -> tuple[dict[str, nn.Module], dict[str, str]]:
    """Return the sides by name, bf16 on the device, and why others are missing."""
    calibration = list(make_images(student.architecture.img_size, held_out=False, each=2).split(8))
    sides: dict[str, nn.Module] = {"bf16": _placed(FlatStudent(student), device)}
    missing: dict[str, str] = {}
    for name, format in FORMATS.items():
        quantized = quantize_model(student, QuantizeConfig(default_layer_dtype=format), calibration).model
        flat = FlatStudent(quantized)
        replace(flat, Int8Linear if name == "int8" else Fp8Linear)
        sides[name] = _placed(flat, device)
    for name in FORMATS:
        try:
            sides[f"torchao {name}"] = _by_torchao(FlatStudent(student), name, device)
        except Exception as error:  # of one side; the others are measured
            missing[f"torchao {name}"] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    return sides, missing


def replace(module: nn.Module, kind: Callable[[QuantizedLinear], nn.Module]) -> None:
    """Put layers that multiply in a format in the place of quantized ones; other quantized layers become float ones."""
    for name, child in list(module.named_children()):
        if isinstance(child, QuantizedLinear) and child.input_quantizer is not None:
            setattr(module, name, kind(child))
        else:
            replace(child, kind)
    for quantizer in quantizers(module).values():
        quantizer.enabled = False  # of convolutions and of additions, which inductor computes in bf16


def _placed(model: nn.Module, device: str) -> nn.Module:
    """Return the model on the device, what is fp32 and not a scale in bf16; images are given in fp32."""
    for module in model.modules():
        kept = getattr(module, "fp32", ())
        for name, tensor in [*module._parameters.items(), *module._buffers.items()]:
            if tensor is not None and tensor.is_floating_point() and name not in kept and tensor.element_size() > 1:
                tensor.data = tensor.data.bfloat16()
    return _Half(model.to(device)).eval()


class _Half(nn.Module):
    """Gives a model bf16 images."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, images: torch.Tensor) -> tuple[torch.Tensor, ...]:
        """Return its features."""
        return self.model(images.bfloat16())


def _by_torchao(flat: FlatStudent, name: str, device: str) -> nn.Module:
    import torchao.quantization as ao

    config = {
        "int8": lambda: ao.Int8DynamicActivationInt8WeightConfig(),
        "fp8": lambda: ao.Float8DynamicActivationFloat8WeightConfig(granularity=ao.PerRow()),
    }[name]()
    model = _placed(flat, device)
    ao.quantize_(model, config)
    return model


def compile_side(model: nn.Module, autotune: bool) -> Call:
    """Compile the model's blocks, and return it; the CUDA graph is radioplat's timer's.

    The blocks are alike, so one compilation serves them all: a whole model takes as many times longer to compile.
    """
    mode = "max-autotune-no-cudagraphs" if autotune else None
    (blocks,) = (child for name, child in model.named_modules() if name.rpartition(".")[2] == "blocks")
    for block in blocks.children():
        block.compile(dynamic=False, mode=mode)
    return model


def times_of(
    compiled: dict[str, Call], size: int, batch: int, device: str, seconds: float, end: float
) -> Iterator[dict[str, Any]]:
    """Yield the figures of one batch size each time that one more side is compiled, all sides so far timed in turn.

    ``failed`` has the sides that were not compiled until ``end``.
    """
    timers, methods, failed, calls = {}, set(), {}, {}
    record = {"input_shape": [3, size, size]}
    for name, call in compiled.items():
        if time.monotonic() > end:
            failed[name] = "the time was used up"
            continue
        on_device = (lambda images, call=call: call(images)) if device == "cuda" else None
        runner = _Runner(record, on_device, call)
        try:
            timers[name], method = timer(runner, batch)  # type: ignore[arg-type]  # it has what is read
            timers[name]()
            print(f"{name} at {batch}: compiled", file=sys.stderr, flush=True)
            methods.add(method)
            calls[name] = call
        except Exception as error:  # of one side; the others are measured
            timers.pop(name, None)
            failed[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
            continue
        if len(timers) > 1:
            latencies = measure_in_turn(timers, seconds)
            medians = {side: latency.p50 for side, latency in latencies.items()}
            found = {"method": sorted(methods), "ms": medians, "p90": {s: one.p90 for s, one in latencies.items()}}
            found |= {f"{s}_over_bf16": round(medians["bf16"] / medians[s], 3) for s in FORMATS if s in medians}
            if device == "cuda":
                found |= _by_triton(calls, medians, torch.rand(batch, 3, size, size, device=device))
            yield {"failed": failed, **found}


def _by_triton(calls: dict[str, Call], medians: dict[str, float], images: torch.Tensor) -> dict[str, Any]:
    """Return the medians of bf16 and INT8 by triton's clock, and how far radioplat's are from them."""
    import triton.testing

    theirs = {}
    for name in {"bf16", "int8"} & calls.keys():
        values = triton.testing.do_bench_cudagraph(lambda call=calls[name]: call(images), rep=200, return_mode="all")
        theirs[name] = round(statistics.median(values), 4)
    return {"triton_ms": theirs, "agreement": round(max(abs(medians[name] / ms - 1) for name, ms in theirs.items()), 3)}


class _Runner(SimpleNamespace):
    """What radioplat's timer reads of an engine."""

    def __init__(self, record: dict[str, Any], on_device: Any, call: Call) -> None:
        super().__init__(record=record, on_device=on_device, bound=None)
        self._call = call

    def __call__(self, images: Any) -> Any:
        """Run a batch of images of numpy."""
        return self._call(torch.from_numpy(images))


if __name__ == "__main__":
    main()
