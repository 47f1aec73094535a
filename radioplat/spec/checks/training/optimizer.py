"""Checks of optimizer, schedule, regularizer and moving average."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from radioplat.errors import Problem
from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.train import Policy


def optimizer_problems(spec: Spec) -> Iterator[Problem]:
    """Yield problems of ``train.optim``, ``train.regularizer`` and the EMA."""
    optim = spec.train.optim
    if len(optim.betas) != 2:
        yield Problem(f"two numbers are needed, not {optim.betas}", "train.optim.betas")
    yield from _policy(spec)
    if (optim.head_warmup_epochs or 0) >= spec.train.num_epochs:
        hint = "To train heads alone, set model.backbone.freeze_backbone."
        yield Problem("the backbone would never be trained", "train.optim.head_warmup_epochs", hint)
    elif optim.head_warmup_epochs and spec.distill.teacher and not any(t.use_head for t in spec.distill.teacher):
        hint = "Set it to 0: with use_head: false nothing but the backbone is trained."
        yield Problem("no teacher has a head", "train.optim.head_warmup_epochs", hint)
    yield from _regularizer(spec)
    yield from _ema(spec)


def _policy(spec: Spec) -> Iterator[Problem]:
    optim = spec.train.optim
    forms: dict[Policy, dict[str, Callable[[Any], str | None]]] = {
        Policy.linear: {"min_lr": _number},
        Policy.cosine: {"min_lr": _number},
        Policy.step: {"step_size": _positive, "gamma": _number},
        Policy.multistep: {"milestones": _numbers, "gamma": _number},
        Policy.soft_start_annealing: {"soft_start": _share, "annealing": _share, "min_lr": _positive},
    }
    valid = forms[optim.policy]
    wrong = False
    for key, value in sorted(optim.policy_params.items(), key=str):
        where = f"train.optim.policy_params.{key}"
        if key not in valid:
            yield Problem(f"unknown for policy {optim.policy.value}", where, f"Valid: {', '.join(sorted(valid))}.")
        elif (wanted := valid[key](value)) is not None:
            wrong = True
            yield Problem(f"{wanted} is needed, not {value!r}", where)
    if optim.policy is Policy.soft_start_annealing:
        if not wrong and optim.policy_params.get("soft_start", 0.1) > optim.policy_params.get("annealing", 0.7):
            message = "the learning rate would fall before the end of its warm-up"
            yield Problem(message, "train.optim.policy_params.soft_start", "Take at most policy_params.annealing.")
        if optim.warmup_epochs:
            hint = "Give policy_params.soft_start, a share of the run, instead."
            yield Problem("soft_start_annealing has its own warm-up", "train.optim.warmup_epochs", hint)


def _regularizer(spec: Spec) -> Iterator[Problem]:
    regularizer, where = spec.train.regularizer, "train.regularizer"
    if regularizer.type is not None and regularizer.power is None:
        yield Problem(f"no penalty is called {regularizer.type!r}", f"{where}.type", "Take L1 or L2.")
    elif regularizer.weight > 0 and regularizer.type is None:
        yield Problem("a penalty with a weight needs a type", f"{where}.type", "Take L1 or L2.")
    elif regularizer.weight > 0 and spec.train.zero_stage == 3:
        yield Problem(
            "a penalty needs all weights, which no rank has with ZeRO-3",
            where,
            "Take train.zero_stage 2, or train.optim.weight_decay.",
        )


def _ema(spec: Spec) -> Iterator[Problem]:
    train = spec.train
    if not train.enable_ema:
        for task in ("evaluate", "export"):
            section = getattr(spec, task)
            if section.use_ema and section.checkpoint is None and task in spec.distill.then:
                hint = "Set train.enable_ema."
                yield Problem("the run would have no moving average", f"{task}.use_ema", hint)


def _number(value: Any) -> str | None:
    return None if isinstance(value, (int, float)) and not isinstance(value, bool) else "a number"


def _positive(value: Any) -> str | None:
    return None if _number(value) is None and value > 0 else "a positive number"


def _share(value: Any) -> str | None:
    return None if _number(value) is None and 0 <= value <= 1 else "a share in [0, 1]"


def _numbers(value: Any) -> str | None:
    return None if isinstance(value, list) and all(_number(v) is None for v in value) else "a list of numbers"
