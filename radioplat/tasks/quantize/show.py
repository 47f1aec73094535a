"""Terminal output of ``quantize``."""

from __future__ import annotations

from collections import Counter

from radioplat.common import terminal
from radioplat.tasks.quantize.report import LayerReport, QuantizeReport

MOST = 40  # rows shown of a long model


def show(report: QuantizeReport) -> None:
    """Print the quantized layers with their formats, and the layers in float with reasons."""
    rows = [_row(layer) for layer in report.layers]
    if len(rows) > MOST:
        rows = [*rows[: MOST // 2], ["...", "", "", "", ""], *rows[-MOST // 2 :]]
    done = f"{report.images} images, {report.folded} BatchNorms folded, {report.equalized} pairs equalized"
    terminal.show_table("Quantized", ["layer", "type", "weights", "activations", "activations up to"], rows, done)
    for why, count in Counter(report.skipped.values()).items():
        terminal.say(f"{count} layer{'s' * (count > 1)} in float: {why}")
    for note in report.notes:
        terminal.note(note)
    for kind, value in report.cosine.items():
        terminal.say(f"{kind} before and after, mean cosine: {value:.5f}")
    terminal.say(f"{report.path}")
    if report.trained is not None:
        terminal.say(f"trained, step {report.trained.global_step}: {report.trained.checkpoint}")


def _row(layer: LayerReport) -> list[str]:
    weights, activations = layer.weights, layer.activations
    if weights is None and activations is None:  # ModelOpt reports no formats
        return [layer.name, layer.type, "quantized", "quantized", ""]
    return [
        layer.name,
        layer.type,
        "" if weights is None else f"{weights.format} x {weights.scales}",
        "float" if activations is None else activations.format,
        "" if activations is None else f"{activations.amax:.4g}",
    ]
