"""Spec section ``compress``: a chain of tasks from a trained student to an engine, with gates between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from radioplat.spec.ranges import number
from radioplat.spec.schema.evaluate import MetricName


class Stage(str, Enum):
    """A task of the chain; its input is the previous stage's student."""

    distill = "distill"  # task distill (or train, without teachers); only as the first stage
    prune = "prune"
    low_rank = "low_rank"
    quantize = "quantize"  # as set in section quantize
    ptq = "ptq"  # task quantize with mode: ptq
    qat = "qat"  # task quantize with mode: qat
    retrain = "retrain"  # task distill (or train, without teachers), starting from the previous stage's student
    evaluate = "evaluate"  # on dataset.test_dataset if the spec has one, else on val_dataset
    export = "export"
    engine = "engine"  # task gen_trt_engine


class OnFail(str, Enum):
    """Reaction to a gate that fails."""

    stop = "stop"
    relax = "relax"  # repeat the stage with a milder setting


@dataclass
class GatesConfig:
    """Quality that each stage must keep, relative to the starting student, on ``dataset.val_dataset``."""

    min_kept: float | None = number(None, above=0, at_most=1)  # share of the metric; unset: no gate
    metric: MetricName | None = None  # the metric; unset: fidelity, or mAP for a detector
    on_fail: OnFail = OnFail.stop
    retries: int = number(3, at_least=0)  # milder settings to try with on_fail: relax


@dataclass
class CompressConfig:
    """Spec section ``compress``."""

    checkpoint: str | None = None  # the starting student; default: results_dir/distill's (or train's) latest
    stages: list[Stage] = field(default_factory=list)  # tasks in their order
    # spec overrides for one stage, keyed by its name (`retrain`) or its number and name (`02_retrain`)
    changes: dict[str, list[str]] = field(default_factory=dict)
    gates: GatesConfig = field(default_factory=GatesConfig)
