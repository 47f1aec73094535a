"""Pruning in rounds: something goes, the student is trained on, something goes again; a rerun goes on where it was.

Each round has a folder ``round_N``: ``model_pruned`` is what was cut, ``model_rewound`` the same places of the weights
to go back to, ``distill`` (or ``train``) the run that followed. What is whole is not made again.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import torch

from radioplat.compression.cost import Cost
from radioplat.compression.pruning.prune import Aim, prune_alike
from radioplat.compression.pruning.schedule import removed_share, share_of_rest
from radioplat.compression.pruning.sparsify import Sparsified
from radioplat.errors import WeightsError
from radioplat.models.student.checkpoint import load_student, read_architecture
from radioplat.models.student.student import Student
from radioplat.spec.schema.prune import PruneBudget, PruneConfig, SparsityConfig, SparsityPattern
from radioplat.spec.schema.retrain import RetrainMode
from radioplat.spec.schema.root import Spec
from radioplat.tasks.distill.retrain import retrain
from radioplat.tasks.prune.cut import Cut, cut
from radioplat.tasks.shared.model_folder import write_model

PRUNED, REWOUND, REPORT = "model_pruned", "model_rewound", "prune.json"
REWIND_FIELD = "prune.retrain.rewind_to"


@dataclass(frozen=True)
class Round:
    """One round.

    Attributes:
        amount: the share of each layer's channels that went in it.
        before, after: what the backbone took and takes.
        checkpoint: of the student that was trained on.
    """

    number: int
    amount: float
    before: Cost
    after: Cost
    sparse: Sparsified | None
    checkpoint: Path


def prune_in_rounds(spec: Spec, checkpoint: Path, folder: Path, say: Callable[[str], None] | None) -> Iterator[Round]:
    """Every round of ``spec.prune``, once it is done.

    Raises:
        WeightsError: there are no weights to rewind to.
        RadioplatError: as the cuts and the runs do.

    Args:
        checkpoint: of the student before the first.
        folder: of the task.
    """
    whole: Cost | None = None
    if spec.prune.retrain.rewind_to is not None:
        read_architecture(spec.prune.retrain.rewind_to, REWIND_FIELD)
    for number in range(1, spec.prune.rounds + 1):
        place = folder / f"round_{number}"
        if not (place / PRUNED).exists():
            config = _of_round(spec.prune, number, whole, _cost_left(folder, number))
            _cut(spec, config, checkpoint, folder, number)
        told = json.loads((place / PRUNED / REPORT).read_text(encoding="utf-8"))
        before, after = Cost(**told["before"]), Cost(**told["after"])
        whole = whole or before
        rewinds = spec.prune.retrain.mode is RetrainMode.weight_rewind
        checkpoint = retrain(spec, spec.prune.retrain, place / (REWOUND if rewinds else PRUNED), place, say)
        sparse = Sparsified(**told["sparse"]) if told["sparse"] else None
        yield Round(number, told["amount"], before, after, sparse, checkpoint)


def _cut(spec: Spec, config: PruneConfig, checkpoint: Path, folder: Path, number: int) -> None:
    place = folder / f"round_{number}"
    aim = None
    if number > 1 and not any(share is not None for share in vars(config.budget).values()):
        first = json.loads((folder / "round_1" / PRUNED / REPORT).read_text(encoding="utf-8"))
        aim = Aim(first["sizes"], removed_share(number, spec.prune.rounds, spec.prune.schedule, spec.prune.amount))
    done = cut(spec, config, checkpoint, place, aim)
    amount = done.config.amount if done.config.cut else 0.0
    facts: dict[str, Any] = {"round": number, "checkpoint": str(checkpoint), "amount": amount}
    facts |= {"sparse": asdict(done.sparse) if done.sparse is not None else None}
    facts |= {"before": asdict(done.before), "after": asdict(done.after)}
    facts |= {"sizes": done.cuts.sizes if done.cuts else {}}
    if spec.prune.retrain.mode is RetrainMode.weight_rewind and spec.prune.retrain.wanted:
        source = Path(spec.prune.retrain.rewind_to or "") if number == 1 else folder / f"round_{number - 1}" / REWOUND
        write_model(_rewound(source, checkpoint, done, number == 1), place / REWOUND, REPORT, facts)
    write_model(done.student, place / PRUNED, REPORT, facts)  # last: what is there says that the round was cut


def _rewound(source: Path, checkpoint: Path, done: Cut, first: bool) -> Student:
    """What stays of the earlier weights in ``source``: the places that stay of ``checkpoint``.

    Raises:
        WeightsError: ``source`` is of another form.
    """
    early, late = load_student(source, REWIND_FIELD, ema=False), load_student(checkpoint, "prune.checkpoint")
    shapes = [{name: tensor.shape for name, tensor in s.state_dict().items()} for s in (early, late)]
    if first and shapes[0] != shapes[1]:
        unlike = sorted(n for n in shapes[0].keys() | shapes[1].keys() if shapes[0].get(n) != shapes[1].get(n))
        raise WeightsError(
            f"{source} is of another form than {checkpoint} ({unlike[0]})",
            where=REWIND_FIELD,
            hint="Give an earlier checkpoint of the run that the student is from.",
        )
    if done.cuts is not None:
        early = prune_alike(early, done.config, done.cuts)
    assert isinstance(done.student, Student)
    sparsity = done.student.architecture.sparsity
    with torch.no_grad():
        for name in sparsity.layers if sparsity else ():
            zeros = done.student.backbone.get_submodule(name).weight == 0
            early.backbone.get_submodule(name).weight.masked_fill_(zeros, 0)
    early.architecture = dataclasses.replace(early.architecture, sparsity=sparsity)
    return early


def _cost_left(folder: Path, number: int) -> Cost | None:
    """What the backbone takes before round ``number``; None before the first."""
    report = folder / f"round_{number - 1}" / PRUNED / REPORT
    return Cost(**json.loads(report.read_text(encoding="utf-8"))["after"]) if number > 1 else None


def _of_round(asked: PruneConfig, number: int, whole: Cost | None, left: Cost | None) -> PruneConfig:
    """What goes in round ``number``, as shares of what is left then. Blocks are spread evenly."""

    def so_far(final: float, number: int) -> float:
        return removed_share(number, asked.rounds, asked.schedule, final)

    amount = share_of_rest(so_far(asked.amount, number - 1), so_far(asked.amount, number))
    blocks = asked.blocks * number // asked.rounds - asked.blocks * (number - 1) // asked.rounds
    shares = {}
    for name, share in vars(asked.budget).items():
        if share is not None:
            kept = 1 - so_far(1 - share, number)
            # Of the whole: what earlier rounds took too much, or too little, is made up for.
            shares[name] = kept if left is None else min(1.0, kept * getattr(whole, name) / getattr(left, name))
    sparsity = asked.sparsity
    if sparsity.type is SparsityPattern.unstructured:
        sparsity = dataclasses.replace(sparsity, amount=so_far(sparsity.amount, number))
    elif number < asked.rounds:
        sparsity = SparsityConfig()  # 2:4 at the end: cuts would break it
    return dataclasses.replace(
        asked, amount=amount, blocks=blocks, budget=PruneBudget(**shares), sparsity=sparsity, parts=asked.cut
    )
