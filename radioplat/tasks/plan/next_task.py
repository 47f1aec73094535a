"""The task that a spec describes."""

from __future__ import annotations

import contextlib

from radioplat.errors import EngineError
from radioplat.spec.checks.tasks.training_task import described_command, is_taught
from radioplat.spec.schema.quantize import QuantizeMode
from radioplat.spec.schema.root import Spec
from radioplat.tasks.quantize.post_training import quantized_path


def next_task(spec: Spec) -> tuple[str, str]:
    """Return the task that a spec describes, and the reason if it is not a distillation."""
    if spec.quantize.mode is QuantizeMode.qat:
        with contextlib.suppress(EngineError):  # without a checkpoint the run before it is planned
            why = f"quantize.mode is qat, and there is a checkpoint, {quantized_path(spec)}"
            return "quantize", f"quantize: {why}; `radioplat plan distill` plans the run before it"
    command = described_command(spec)
    return command, "" if is_taught(command) else f"{command}: the spec has labels and no teachers"
