"""A step hook that looks at one step of a run: pixels, targets, each sample's part of the loss, gradients by layer.

A file in the task folder says which step, so that the hook also runs in workers on Ray; `radioplat replay` writes it.
"""

from __future__ import annotations

import json
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from radioplat.data.batch import Batch
from radioplat.models.features import Features
from radioplat.objectives.micro_batch import MicroBatch
from radioplat.training.guards.pause import ask_to_pause
from radioplat.training.hooks.own_hook import HookContext
from radioplat.training.hooks.step_hook import StepHook
from radioplat.training.hooks.step_record import CONTINUE, StepDecision, StepRecord

REQUEST = "examine.json"
PATH = f"{__name__}:ExamineStep"


@dataclass(frozen=True)
class Request:
    """Which step to look at, and for what.

    Attributes:
        step: counted from 0; the run ends after it.
        micro_batch: number within the step of the only one to look at; None: all of them.
        debug: open Python's debugger before its forward.
        folder: where its files are written; "": nowhere.
    """

    step: int
    micro_batch: int | None = None
    debug: bool = False
    folder: str = ""

    def write(self, task_folder: Path) -> None:
        """Write it where :class:`ExamineStep` reads it."""
        task_folder.mkdir(parents=True, exist_ok=True)
        (task_folder / REQUEST).write_text(json.dumps(asdict(self)), encoding="utf-8")


def remove_files(folder: Path) -> None:
    """Remove the files of a step that :class:`ExamineStep` wrote to ``folder`` before: they would pass for the new."""
    for pattern in ("micro_batch_*.npz", "gradients_*.json"):
        for path in folder.glob(pattern):
            path.unlink()


class ExamineStep(StepHook):
    """Write ``micro_batch_<n>.npz`` for each micro-batch of this rank, and ``gradients_<rank>.json``; then end the run.

    A file of a micro-batch has ``sample_id``, ``position``, ``weight``, ``label`` ``[B]``, ``view/<name>`` uint8
    ``[B, 3, H, W]``, ``target/<teacher>/<kind>`` fp32, and ``term/<name>`` ``[B]``: the sample's part of the
    micro-batch's loss, whose sum over terms and samples is the loss without what has no samples (penalties on weights).
    Gradients are the norms by layer of the sum over this rank's micro-batches, before clipping.
    """

    name = "examine_step"

    def __init__(self, context: HookContext) -> None:
        self._context, self._objective = context, context.objective
        self._request = Request(**json.loads((context.folder / REQUEST).read_text(encoding="utf-8")))
        self._active = False
        self._batch: Batch | None = None
        self._pieces: list[MicroBatch] = []
        self._terms: dict[str, list[torch.Tensor]] = {}
        self._gradients: dict[str, torch.Tensor] = {}
        self._handles: list[Any] = []

    def begin_step(self, step: int) -> None:
        """Begin to look if it is the step, and ask the run to end after it."""
        self._active = step == self._request.step
        if not self._active:
            return
        ask_to_pause("stopped", "the step to look at is done")
        if self._request.folder:
            Path(self._request.folder).mkdir(parents=True, exist_ok=True)
        self._handles = [self._objective.register_forward_pre_hook(lambda _, inputs: self._pieces.append(inputs[0]))]
        for name, parameter in self._objective.named_parameters():
            if parameter.requires_grad:
                self._handles.append(parameter.register_hook(self._adder(name)))
        self._objective.observer = lambda term, parts: self._terms.setdefault(term, []).append(parts.detach())

    def begin_micro_batch(self, step: int, batch: Batch) -> None:
        """Remember the samples, and open the debugger if it is asked for."""
        if not self._active:
            return
        self._batch = batch
        self._pieces.clear()
        self._terms.clear()
        if self._request.debug and self._is_wanted(batch):
            self._debug(step, batch)

    def end_micro_batch(self, step: int, batch: Batch) -> None:
        """Write the micro-batch's file."""
        if not (self._active and self._request.folder and self._is_wanted(batch)):
            return
        arrays: dict[str, Any] = {
            "sample_id": batch.sample_id,
            "position": batch.position,
            "weight": batch.weight,
            "label": batch.label,
            **{f"view/{name}": view.pixels for name, view in batch.views.items()},
        }
        for teacher in self._pieces[0].targets if self._pieces else ():
            features = [piece.targets[teacher] for piece in self._pieces]
            arrays |= {f"target/{teacher}/{kind}": value for kind, value in _arrays(features).items()}
        for term, parts in self._terms.items():
            arrays[f"term/{term}"] = torch.cat(parts).float().cpu().numpy() / len(parts)
        np.savez(Path(self._request.folder) / f"micro_batch_{self._number(batch):04d}.npz", **arrays)

    def before_update(self, record: StepRecord) -> StepDecision:
        """Write the gradients; a step that is computed once more adds nothing to them."""
        if self._active:
            for handle in self._handles:
                handle.remove()
            self._objective.observer = None
            if self._request.folder:
                squares: dict[str, float] = {}
                for name, gradient in self._gradients.items():
                    layer = name.rpartition(".")[0]
                    squares[layer] = squares.get(layer, 0.0) + float(gradient.double().square().sum())
                norms = {layer: square**0.5 for layer, square in squares.items()}
                path = Path(self._request.folder) / f"gradients_{self._context.rank}.json"
                path.write_text(json.dumps(norms, indent=1), encoding="utf-8")
            self._gradients.clear()
        return CONTINUE

    def _adder(self, name: str) -> Any:  # noqa: ANN401
        def add(gradient: torch.Tensor) -> None:
            fp32 = gradient.detach().float()
            self._gradients[name] = self._gradients[name] + fp32 if name in self._gradients else fp32.clone()

        return add

    def _number(self, batch: Batch) -> int:
        """Return the micro-batch's number within its step."""
        spec = self._context.spec
        return int(batch.micro_batch) % (spec.global_batch_size // spec.dataset.batch_size)

    def _is_wanted(self, batch: Batch) -> bool:
        return batch.micro_batch >= 0 and self._request.micro_batch in (None, self._number(batch))

    def _debug(self, step: int, batch: Batch) -> None:
        """Open the debugger; `up` and `down` move between this frame and the training loop."""
        import pdb

        objective, student = self._objective, self._objective.student  # noqa: F841 - names for the user of the debugger
        print(f"step {step + 1}, micro-batch {self._number(batch)}: `batch`, `objective` and `student` are defined")
        pdb.set_trace()


def _arrays(features: list[Features]) -> dict[str, np.ndarray]:
    """Join the features of the pieces of a micro-batch, by kind, fp32."""
    tensors: dict[str, list[torch.Tensor]] = {}
    for each in features:
        named = {"summary": each.summary, "spatial": each.spatial, **each.named}
        for kind, value in named.items():
            if value is not None:
                tensors.setdefault(kind, []).append(value.detach().float().cpu())
    return {kind: torch.cat(values).numpy() for kind, values in tensors.items()}
