"""Milder settings for a stage that lost too much quality."""

from __future__ import annotations

import json
import math
from pathlib import Path

from radioplat.spec.schema.prune import PruneMode, SparsityPattern
from radioplat.spec.schema.quantize import QuantizeMode
from radioplat.spec.schema.root import Spec
from radioplat.tasks.compress.sensitivity import most_sensitive

STEP = 0.75  # each retry removes this share of what the previous attempt removed


def milder_quantize(spec: Spec, attempt: int, student: Path) -> list[str]:
    """Return overrides that leave more layers in floats, the most sensitive first; with teachers the last retry trains.

    Args:
        attempt: number of the retry, from 1.
        student: the checkpoint folder that the stage wrote before any retry.
    """
    if attempt == spec.compress.gates.retries and spec.distill.teacher and spec.quantize.mode is not QuantizeMode.qat:
        return ["quantize.mode=qat"]
    layers = most_sensitive(spec, student)
    count = math.ceil(len(layers) * (1 - STEP**attempt))
    names = [*spec.quantize.skip_names, *layers[:count]]
    return [f"quantize.skip_names={json.dumps(names)}"] if count < len(layers) else []


def milder_prune(spec: Spec, attempt: int, student: Path | None = None) -> list[str]:
    """Return overrides that remove less than retry ``attempt`` - 1 did; empty if nothing less is left to remove."""
    overrides = _prune(spec, attempt)
    return overrides if overrides != _prune(spec, attempt - 1) else []


def _prune(spec: Spec, attempt: int) -> list[str]:
    """Return the overrides of one retry; empty if it would remove nothing."""
    config, share = spec.prune, STEP**attempt
    budgets = {name: kept for name, kept in vars(config.budget).items() if kept is not None}
    overrides = [f"prune.budget.{name}={1 - (1 - kept) * share:.6g}" for name, kept in budgets.items()]
    if config.cut and config.mode is PruneMode.threshold:
        overrides.append(f"prune.threshold={config.threshold * share:.6g}")
    elif not budgets and config.cut:
        overrides.append(f"prune.amount={config.amount * share:.6g}")
    if config.blocks:
        blocks = config.blocks  # at least one fewer in each retry
        for number in range(1, attempt + 1):
            blocks = max(0, min(blocks - 1, int(config.blocks * STEP**number)))
        if not blocks and not config.cut and config.sparsity.type is None:
            return []
        overrides.append(f"prune.blocks={blocks}")
    if config.sparsity.type is SparsityPattern.unstructured:
        overrides.append(f"prune.sparsity.amount={config.sparsity.amount * share:.6g}")
    return overrides


def milder_low_rank(spec: Spec, attempt: int, student: Path | None = None) -> list[str]:
    """Return overrides that keep more of each layer's singular values."""
    config, share = spec.low_rank, STEP**attempt
    shares = {name: value for name in ("energy", "ratio") if (value := getattr(config, name)) is not None}
    overrides = [f"low_rank.{name}={1 - (1 - kept) * share:.6g}" for name, kept in shares.items()]
    # Layers have different numbers of singular values, so the rank grows by the same factor in all of them.
    return overrides if config.rank is None else [*overrides, f"low_rank.rank={math.ceil(config.rank / share)}"]
