"""Spec section ``compress``: the stages that take a trained student to an engine, and the gates between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from radioplat.spec.ranges import number


class Stage(str, Enum):
    """A task of the chain; each takes the student that the stage before left."""

    distill = "distill"  # task distill (train without teachers) from the beginning; only the first stage
    prune = "prune"
    low_rank = "low_rank"
    quantize = "quantize"  # as the section quantize says
    ptq = "ptq"  # task quantize with mode: ptq
    qat = "qat"  # task quantize with mode: qat
    retrain = "retrain"  # task distill (train where there are no teachers) from the student of the stage before
    evaluate = "evaluate"  # on dataset.test_dataset where the spec has one, else on val_dataset
    export = "export"
    engine = "engine"  # task gen_trt_engine


class GateMetric(str, Enum):
    """What of an evaluation a gate looks at."""

    fidelity = "fidelity"  # mean over teachers and kinds
    knn = "knn"
    top1 = "top1"  # of the student's own classifier
    mAP = "mAP"  # of a detector


class OnFail(str, Enum):
    """What follows where too little is kept."""

    stop = "stop"
    relax = "relax"  # the stage again, with a milder setting


@dataclass
class GatesConfig:
    """What each stage must keep of the starting student, on ``dataset.val_dataset``."""

    min_kept: float | None = number(None, above=0, at_most=1)  # share of the metric; unset: nothing is asked
    metric: GateMetric | None = None  # unset: fidelity, and of a detector mAP
    on_fail: OnFail = OnFail.stop
    retries: int = number(3, at_least=0)  # milder settings that are tried, with on_fail: relax


@dataclass
class CompressConfig:
    """Spec section ``compress``."""

    checkpoint: str | None = None  # the starting student; default: results_dir/distill's (or train's) latest
    stages: list[Stage] = field(default_factory=list)
    # overrides of the spec for one stage, by its name (`retrain`) or by its number and name (`02_retrain`)
    changes: dict[str, list[str]] = field(default_factory=dict)
    gates: GatesConfig = field(default_factory=GatesConfig)
