"""Terminal output of ``radioplat replay``."""

from __future__ import annotations

from radioplat.common import terminal
from radioplat.errors import TrainingError
from radioplat.tasks.replay.replay import ReplayResult


def show(result: ReplayResult) -> None:
    """Print the figures side by side, and whether they are the same.

    Raises:
        TrainingError: they are not, after all was printed.
    """
    rows = [
        [name, f"{result.recorded[name]:.9g}" if name in result.recorded else "not written", f"{value:.9g}"]
        for name, value in result.replayed.items()
    ]
    terminal.show_table(f"Step {result.step}", ["term", "recorded", "computed again"], rows)
    terminal.say(f"samples: {result.ids_equal:.1%} have the recorded id, {result.pixels_equal:.1%} the recorded pixels")
    if result.page is not None:
        terminal.say(f"page: {result.page}")
    allowed = f", {result.tolerance:.1g} is allowed: {result.reason}" if result.tolerance else ""
    before, now = result.decisions
    if before or now:
        terminal.say(f"recorded: {before or 'the weights moved'}")
        terminal.say(f"computed again: {now or 'the weights moved'}")
    elif not result.recorded:
        terminal.say("the run wrote no figures of this step (train.log_interval); samples alone were compared")
    elif result.difference == 0:
        terminal.say("the loss and its terms are those that were recorded, bit for bit")
    else:
        terminal.say(f"largest difference, relative to the loss: {result.difference:.2g}{allowed}")
    if not result.is_same:
        hint = "Were shards, weights, the version of radioplat or PyTorch, or the machine changed since?"
        raise TrainingError("the step computed again is not the recorded one", where=f"step {result.step}", hint=hint)
