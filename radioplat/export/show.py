"""Exports and engines in the terminal."""

from __future__ import annotations

from radioplat import terminal
from radioplat.export.engines.build import EngineReport
from radioplat.export.onnx import OnnxReport
from radioplat.export.weights import WeightsReport


def show_export(report: OnnxReport | WeightsReport) -> None:
    """Print what was exported, and for weights the line that opens them."""
    if isinstance(report, OnnxReport):
        return show_onnx(report)
    terminal.say(f"{report.path} ({terminal.size(report.bytes)}, {report.format.value}, fp32)")
    heads = ", ".join(report.adaptors) or "none"
    terminal.say(f"heads: {heads}; read back, its features differ by {report.max_abs_error:.2e}")
    for line in report.notes:
        terminal.say(f"note: {line}")
    terminal.say(f"open it with: {report.load}")


def show_onnx(report: OnnxReport) -> None:
    """Print what was exported."""
    terminal.say(f"{report.path} ({terminal.size(report.bytes)}, opset {report.opset}, {report.data_type})")
    terminal.say(f"outputs: {', '.join(report.outputs)}; largest difference from torch {report.max_abs_error:.2e}")
    for line in report.notes:
        terminal.say(line)


def show_engine(report: EngineReport) -> None:
    """Print what was built."""
    terminal.say(f"{report.path} ({terminal.size(report.bytes)}) for {', '.join(report.compute_capabilities)}")
    kernels = ", ".join(f"{n} {kind}" for kind, n in (report.kernels or {}).items()) or "not told by this version"
    terminal.say(f"built in {report.seconds:.1f} s by {report.library} {report.version}; kernels: {kernels}")
