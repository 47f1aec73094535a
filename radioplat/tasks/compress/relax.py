"""The milder setting of a stage that took too much."""

from __future__ import annotations

import json
import math
from pathlib import Path

from radioplat.spec.checks.tasks.compress import QUANTIZES
from radioplat.spec.schema.compress import Stage
from radioplat.spec.schema.prune import PruneMode, SparsityPattern
from radioplat.spec.schema.quantize import QuantizeMode
from radioplat.spec.schema.root import Spec
from radioplat.tasks.compress.sensitivity import most_sensitive

STEP = 0.75  # of what went, the share that goes the next time


def milder(spec: Spec, stage: Stage, attempt: int, student: Path | None = None) -> list[str]:
    """Overrides of ``spec`` for retry number ``attempt``, from 1; empty where there is nothing milder.

    What quantizes leaves more layers float each time, those first that lose most; with teachers the last retry trains.

    Args:
        student: what the stage left at first, with nothing relaxed; a checkpoint folder.
    """
    if stage in QUANTIZES:
        trains = stage is Stage.qat or spec.quantize.mode is QuantizeMode.qat
        if attempt == spec.compress.gates.retries and spec.distill.teacher and not trains:
            return ["quantize.mode=qat"]
        assert student is not None
        return _quantize(spec, most_sensitive(spec, student), STEP**attempt)
    if stage is Stage.low_rank:
        return _low_rank(spec, STEP**attempt)
    if stage is not Stage.prune:
        return []
    found = _prune(spec, attempt)
    return found if found != _prune(spec, attempt - 1) else []


def _prune(spec: Spec, attempt: int) -> list[str]:
    """Overrides; empty where nothing would go any more."""
    asked, share = spec.prune, STEP**attempt
    budgets = {name: kept for name, kept in vars(asked.budget).items() if kept is not None}
    found = [f"prune.budget.{name}={1 - (1 - kept) * share:.6g}" for name, kept in budgets.items()]
    if asked.cut and asked.mode is PruneMode.threshold:
        found.append(f"prune.threshold={asked.threshold * share:.6g}")
    elif not budgets and asked.cut:
        found.append(f"prune.amount={asked.amount * share:.6g}")
    if asked.blocks:
        left = asked.blocks  # one fewer each time at least
        for number in range(1, attempt + 1):
            left = max(0, min(left - 1, int(asked.blocks * STEP**number)))
        if not left and not asked.cut and asked.sparsity.type is None:
            return []
        found.append(f"prune.blocks={left}")
    if asked.sparsity.type is SparsityPattern.unstructured:
        found.append(f"prune.sparsity.amount={asked.sparsity.amount * share:.6g}")
    return found


def _low_rank(spec: Spec, share: float) -> list[str]:
    asked = spec.low_rank
    shares = {name: value for name in ("energy", "ratio") if (value := getattr(asked, name)) is not None}
    found = [f"low_rank.{name}={1 - (1 - kept) * share:.6g}" for name, kept in shares.items()]
    # How many singular values there are differs from layer to layer: more of them stay, by the same factor.
    return found if asked.rank is None else [*found, f"low_rank.rank={math.ceil(asked.rank / share)}"]


def _quantize(spec: Spec, layers: list[str], share: float) -> list[str]:
    """The share of ``layers`` that stays quantized; those that come first become float."""
    count = math.ceil(len(layers) * (1 - share))
    names = [*spec.quantize.skip_names, *layers[:count]]
    return [f"quantize.skip_names={json.dumps(names)}"] if count < len(layers) else []
