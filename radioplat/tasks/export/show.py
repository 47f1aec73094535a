"""Terminal output of ``export`` and ``gen_trt_engine``."""

from __future__ import annotations

import textwrap
from typing import TYPE_CHECKING, Any

from radioplat.common import terminal
from radioplat.spec.resolved.number_formats import ACTIVATIONS

if TYPE_CHECKING:
    from radioplat.exporting.engines.build import EngineReport
    from radioplat.exporting.onnx.export import OnnxReport
    from radioplat.exporting.weights.export import WeightsReport
    from radioplat.tasks.export.side_files import SideFiles

MOST = 8  # names in a line


def show_export(report: OnnxReport | WeightsReport) -> None:
    """Print the exported file, its outputs and its difference from torch; for weights also the code that opens them."""
    from radioplat.exporting.weights.export import WeightsReport  # imports torch

    if not isinstance(report, WeightsReport):
        return _show_onnx(report)
    terminal.say(f"{report.path} ({terminal.size(report.bytes)}, {report.format.value}, fp32)")
    heads = ", ".join(report.adaptors) or "none"
    terminal.say(f"heads: {heads}; read back, its features differ by {report.max_abs_error:.2e}")
    for line in report.notes:
        terminal.say(f"note: {line}")
    terminal.say(f"open it with: {report.load}")


def _show_onnx(report: OnnxReport) -> None:
    terminal.say(f"{report.path} ({terminal.size(report.bytes)}, opset {report.opset}, {report.data_type})")
    terminal.say(f"outputs: {', '.join(report.outputs)}; largest difference from torch {report.max_abs_error:.2e}")
    for line in report.notes:
        terminal.say(line)
    if report.quantized:
        formats = ", ".join(report.quantized.formats)
        judged = ", on noise" if report.quantized.on_noise else ""
        terminal.say(f"Q/DQ: {formats}; least cosine with torch {report.quantized.cosine:.5f}{judged}")
        from radioplat.tasks.export.show_lint import show as show_lint

        show_lint(report.quantized.lint)
        for finding in report.quantized.lint.errors:
            terminal.say(f"lint: {finding.node}: {finding.message} [{finding.rule}]")
    if report.side_files:
        _show_side_files(report.side_files)


def _show_side_files(side_files: SideFiles) -> None:
    for path, description in side_files.files.items():
        terminal.say(f"{path}: {description}")
    if cpu := side_files.cpu:
        terminal.say(
            f"CPU INT8, {cpu.method}: {cpu.quantized} of {cpu.layers} layers; mean cosine with fp32 {cpu.cosine:.5f} "
            f"on {cpu.images} images; {terminal.size(cpu.bytes)} for {terminal.size(cpu.fp32_bytes)}; an image here "
            f"takes {1000 * cpu.seconds:.2f} ms for {1000 * cpu.fp32_seconds:.2f}"
        )
        if cpu.warning:
            terminal.say(f"warning: {cpu.warning}")


def show_engine(report: EngineReport) -> None:
    """Print the engine, whether it ran, and how much of it is quantized."""
    terminal.say(f"{report.path} ({terminal.size(report.bytes)}, {report.data_type})")
    smallest, best, largest = report.batch
    lines = {
        "written": f"by {report.library} {report.version} in {report.seconds:.1f} s ({report.backend_reason})",
        "executed": _executed(report),
        "evaluated": "no; `radioplat evaluate` does that",
        "made for": ", ".join(report.compute_capabilities) or "CPUs",
        "images": " x ".join(map(str, report.input_shape)) + f", {smallest} to {largest} at once, best {best}",
        "outputs": ", ".join(report.outputs),
        **_kernel_lines(report),
        **latency_lines(report.latency or {}),
    }
    for label, text in lines.items():
        terminal.say(textwrap.fill(f"  {label:<14}{text}", 118, subsequent_indent=" " * 16, break_long_words=False))
    for line in report.notes:
        terminal.say(f"note: {line}")
    for line in report.warnings:
        terminal.say(f"warning: {line}")


def latency_lines(latency: dict[str, Any]) -> dict[str, str]:
    """Return a line with the milliseconds of each data type, and lines about those that were not measured."""
    rows = latency.get("batches", {})
    if not rows:
        return {}
    names = list(dict.fromkeys(name for row in rows.values() for name in row))
    medians = {name: ", ".join(format(row[name]["p50"], ".3g") for row in rows.values()) for name in names}
    texts = [f"{name} {values}" for name, values in medians.items()]
    where = latency["cpu"] if latency["device"] == "cpu" else latency["device"]
    lines = {"latency": f"{'; '.join(texts)} ms for {', '.join(rows)} images, the median on {where}"}
    if missing := latency["not_measured"]:
        lines["not measured"] = "; ".join(f"{name}: {reason}" for name, reason in missing.items())
    return lines


def _executed(report: EngineReport) -> str:
    execution = report.execution
    if not report.executed:
        return f"never: {execution['reason']}"
    error = execution.get("max_relative_error")
    gap = execution["reason"] if error is None else f"differs from the ONNX file by {error:.1e} of the largest value"
    return f"yes, on {execution['device']}: {gap}"


def _kernel_lines(report: EngineReport) -> dict[str, str]:
    covered, wanted = report.coverage, report.data_type
    share = covered.share(wanted)
    text = "not reported by the builder"
    if share is not None:
        rest = [f"{count} in {name}" for name, count in (covered.kernels or {}).items() if name != wanted]
        text = ", ".join([f"{share[0]} of {share[1]} convolution/GEMM in {wanted}", *rest])
    others = ", ".join(f"{count} {name}" for name, count in covered.others.items())
    text += f"; products of activations: {others}" if others else ""
    lines = {"kernels": text + (f"; {report.layers} layers in all" if report.layers else "")}
    if wanted in ACTIVATIONS:
        quantized = sum(covered.quantized.values())
        lines["layers"] = f"{quantized} of {covered.eligible} quantized in the ONNX file"
        if covered.not_quantized:
            lines["not quantized"] = _few(covered.not_quantized)
        if covered.in_float_kernels:
            lines["in floats"] = _few(covered.in_float_kernels)
        written = covered.writing or {}
        if floats := ", ".join(f"{count} {name}" for name, count in written.items() if name not in ACTIVATIONS):
            behind = f"; {covered.requantizing} layers only round again" if covered.requantizing else ""
            lines["not fused"] = f"{sum(written.values())} kernels compute in 8 bits and write: {floats}{behind}"
        if covered.unseen:
            lines["in unknown"] = f"{_few(covered.unseen)}: in no kernel's name"
    return lines


def _few(names: list[str]) -> str:
    more = len(names) - MOST
    return ", ".join(names[:MOST]) + (f" and {more} more, all in the engine's .json" if more > 0 else "")
