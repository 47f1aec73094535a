"""Terminal output of ``train_upsampler``."""

from __future__ import annotations

from radioplat.common import terminal
from radioplat.tasks.train_upsampler.train_upsampler import UpsamplerResult


def show(result: UpsamplerResult) -> None:
    """Print the errors before and after training, next to bilinear upsampling's."""
    base = result.after.bilinear
    rows = [
        [name, f"{error:.4f}", f"{error / base:.1%}" if base else ""]
        for name, error in (
            ("bilinear", base),
            ("FeatSharp, untrained", result.before.featsharp),
            ("FeatSharp, trained", result.after.featsharp),
        )
    ]
    note = f"{result.held_out} held-out images; 1 is the features' own variance. Bilinear has a trained blur too."
    terminal.show_table(f"Consistency of {result.teacher}", ["upsampler", "error", "of bilinear"], rows, note)
    terminal.say(f"{result.path}")
