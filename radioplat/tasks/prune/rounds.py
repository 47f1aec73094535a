"""Iterative pruning: rounds of pruning and retraining; a rerun continues where it stopped.

Each round has a folder ``round_N``: ``model_pruned`` is the pruned student, ``model_rewound`` the earlier weights in
its shape, ``distill`` (or ``train``) the retraining. A folder that is complete is not written again.
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
from radioplat.compression.pruning.removed_share import removed_share, share_of_rest
from radioplat.compression.pruning.sparsify import Sparsified
from radioplat.errors import WeightsError
from radioplat.models.source import source_of
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
    """Result of one round.

    Attributes:
        amount: share of each layer's channels that the round removed.
        before, after: cost of the backbone.
        checkpoint: of the retrained student.
        heads_stay: attention layers that kept all heads, because they do not run with fewer.
        notes: see :class:`~radioplat.tasks.prune.cut.Cut`.
    """

    number: int
    amount: float
    before: Cost
    after: Cost
    sparse: Sparsified | None
    checkpoint: Path
    heads_stay: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def prune_in_rounds(spec: Spec, checkpoint: Path, folder: Path, say: Callable[[str], None] | None) -> Iterator[Round]:
    """Run the rounds of ``spec.prune``; yield each one when it is done.

    Args:
        checkpoint: of the student before the first round.
        folder: of the task.

    Raises:
        WeightsError: there are no weights to rewind to.
        RadioplatError: as pruning and the runs.
    """
    original: Cost | None = None
    latest: Cost | None = None
    if spec.prune.retrain.rewind_to is not None:
        read_architecture(spec.prune.retrain.rewind_to, REWIND_FIELD)
    for number in range(1, spec.prune.rounds + 1):
        place = folder / f"round_{number}"
        if not (place / PRUNED).exists():
            _cut(spec, _config_of_round(spec.prune, number, original, latest), checkpoint, folder, number)
        facts = json.loads((place / PRUNED / REPORT).read_text(encoding="utf-8"))
        before, latest = Cost(**facts["before"]), Cost(**facts["after"])
        original = original or before
        rewinds = spec.prune.retrain.mode is RetrainMode.weight_rewind
        checkpoint = retrain(spec, spec.prune.retrain, place / (REWOUND if rewinds else PRUNED), place, say)
        sparse = Sparsified(**facts["sparse"]) if facts["sparse"] else None
        stay, notes = (tuple(facts.get(name, ())) for name in ("heads_stay", "notes"))
        yield Round(number, facts["amount"], before, latest, sparse, checkpoint, stay, notes)


def _cut(spec: Spec, config: PruneConfig, checkpoint: Path, folder: Path, number: int) -> None:
    place = folder / f"round_{number}"
    aim = None
    if number > 1 and not any(share is not None for share in vars(config.budget).values()):
        first = json.loads((folder / "round_1" / PRUNED / REPORT).read_text(encoding="utf-8"))
        aim = Aim(first["sizes"], removed_share(number, spec.prune.rounds, spec.prune.schedule, spec.prune.amount))
    done = cut(spec, config, checkpoint, place, aim)
    amount = done.config.amount if done.config.cut else 0.0
    facts: dict[str, Any] = {
        "round": number,
        "checkpoint": str(checkpoint),
        "amount": amount,
        "sparse": asdict(done.sparse) if done.sparse is not None else None,
        "before": asdict(done.before),
        "after": asdict(done.after),
        "sizes": done.cuts.sizes if done.cuts else {},
        "heads_stay": done.cuts.heads_stay if done.cuts else [],
        "notes": done.notes,
    }
    if spec.prune.retrain.mode is RetrainMode.weight_rewind and spec.prune.retrain.wanted:
        source = Path(spec.prune.retrain.rewind_to or "") if number == 1 else folder / f"round_{number - 1}" / REWOUND
        rewound = _rewound(source, checkpoint, done, number == 1)
        write_model(rewound, place / REWOUND, REPORT, facts, [source_of(source, ema=False), source_of(checkpoint)])
    # Last: its folder marks the round as pruned.
    write_model(done.student, place / PRUNED, REPORT, facts, [source_of(checkpoint)])


def _rewound(source: Path, checkpoint: Path, done: Cut, first: bool) -> Student:
    """Return the student of ``source``, an earlier one, without the places that were removed from ``checkpoint``.

    Raises:
        WeightsError: ``source`` has other layers or shapes.
    """
    early, late = load_student(source, REWIND_FIELD, ema=False), load_student(checkpoint, "prune.checkpoint")
    shapes = [{name: tensor.shape for name, tensor in s.state_dict().items()} for s in (early, late)]
    if first and shapes[0] != shapes[1]:
        different = sorted(n for n in shapes[0].keys() | shapes[1].keys() if shapes[0].get(n) != shapes[1].get(n))
        raise WeightsError(
            f"{source} has other layers or shapes than {checkpoint} ({different[0]})",
            where=REWIND_FIELD,
            hint="Use an earlier checkpoint of the run that trained the student.",
        )
    if done.student.architecture.student.fused_branches:
        early.fuse_branches()
        if not early.architecture.fused_branches:
            message = f"the branches of {source} cannot be fused as those of {checkpoint} were"
            raise WeightsError(message, where=REWIND_FIELD, hint="Use a later checkpoint of that run.")
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


def _config_of_round(config: PruneConfig, number: int, original: Cost | None, latest: Cost | None) -> PruneConfig:
    """Return the settings of round ``number``, as shares of what the rounds before it left. Blocks are spread evenly.

    Args:
        original, latest: cost of the backbone before the first round and before this one; None for the first.
    """

    def so_far(final: float, number: int) -> float:
        return removed_share(number, config.rounds, config.schedule, final)

    amount = share_of_rest(so_far(config.amount, number - 1), so_far(config.amount, number))
    blocks = config.blocks * number // config.rounds - config.blocks * (number - 1) // config.rounds
    shares = {}
    for name, share in vars(config.budget).items():
        if share is not None:
            kept = 1 - so_far(1 - share, number)  # of the original, so that deviations of earlier rounds are corrected
            shares[name] = kept if latest is None else min(1.0, kept * getattr(original, name) / getattr(latest, name))
    sparsity = config.sparsity
    if sparsity.type is SparsityPattern.unstructured:
        sparsity = dataclasses.replace(sparsity, amount=so_far(sparsity.amount, number))
    elif number < config.rounds:
        sparsity = SparsityConfig()  # 2:4 in the last round only: removing channels breaks it
    return dataclasses.replace(
        config, amount=amount, blocks=blocks, budget=PruneBudget(**shares), sparsity=sparsity, parts=config.cut
    )
