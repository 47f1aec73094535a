"""The bytes that a parameter is said to take, against what DeepSpeed holds and against the ZeRO paper."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from forked import load, run_ranks

from radioplat.design.memory import checkpoint_bytes, parameter_bytes, validation_bytes
from radioplat.evaluation.models.evaluated_model import in_precision, validation_dtype
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.train import TrainConfig

ranks = load(Path(__file__).with_name("memory_ranks.py"))


def named(cases):
    return pytest.mark.parametrize("case", cases, ids=lambda case: "-".join(map(str, case)))


def said(case, world: int) -> float:
    return parameter_bytes(ranks.config(*case), world).of(ranks.PARAMETERS) / ranks.PARAMETERS


ALONE = [
    ("fp32", ranks.DDP, "adamw", False),
    ("bf16", ranks.DDP, "adamw", True),
    ("fp32", 0, "adamw", True),
    ("fp32", 1, "sgd", False),
    ("fp32", 3, "adamw", False),
    ("bf16", 2, "lamb", True),
]


def measured(folder: Path, world: int, cases: list[tuple]) -> dict[tuple, float]:
    """Bytes a parameter on the first of ``world`` workers, by case."""
    out = folder / "found.json"
    run_ranks(ranks.work, out, cases, world=world, seconds=280)
    return dict(zip(cases, json.loads(out.read_text()), strict=True))


@pytest.fixture(scope="module")
def one_worker(tmp_path_factory) -> dict[tuple, float]:
    return measured(tmp_path_factory.mktemp("one"), 1, ALONE)


@pytest.fixture(scope="module")
def two_workers(tmp_path_factory) -> dict[tuple, float]:
    return measured(tmp_path_factory.mktemp("two"), 2, ranks.CASES)


@named(ALONE)
def test_it_is_what_an_engine_of_one_worker_holds(case, one_worker):
    assert said(case, 1) == pytest.approx(one_worker[case], rel=0.02)


@pytest.mark.proof
@pytest.mark.timeout(300)
@named(ranks.CASES)
def test_it_is_what_an_engine_of_two_workers_holds(case, two_workers):
    assert said(case, 2) == pytest.approx(two_workers[case], rel=0.02)


@pytest.mark.parametrize(
    ("world", "overrides", "expected"),
    [
        (1, ["zero_stage=0"], 4 + 4 + 8),
        (4, ["zero_stage=0", "optim.optim=sgd", "enable_ema=true"], 4 + 4 + 4 + 4),
        (1, ["zero_stage=0", "precision=bf16"], 2 + 6 + 12),  # it runs as stage 1
        (4, ["zero_stage=1", "precision=fp16"], 2 + 6 + 12 / 4),
        (4, ["zero_stage=1"], 4 + 8 + 12 / 4),
        (4, ["zero_stage=2"], 4 + (4 + 12) / 4),
        (4, ["engine=ddp", "enable_ema=true"], 4 + 4 + 8 + 4),
        (4, ["engine=ddp", "precision=bf16"], 2 + 6 + 12),
        (4, ["zero_stage=3"], (4 + 4 + 12) / 4),
    ],
)
def test_what_a_parameter_takes(world, overrides, expected):
    spec = load_spec(None, [f"train.{change}" for change in overrides])
    assert parameter_bytes(spec.train, world).each == expected


def test_the_bucket_of_stage_3_does_not_grow_beyond_its_size():
    taken = parameter_bytes(TrainConfig(zero_stage=3), 100)
    assert taken.of(10**10) - taken.of(10**9) == taken.each * 9 * 10**9


@pytest.mark.parametrize(("stage", "shared", "paper"), [(1, 12, 4 + 12 / 8), (2, 14, 2 + 14 / 8), (3, 16, 16 / 8)])
def test_it_is_the_paper_s_but_for_gradients_in_fp32(stage, shared, paper):
    """Rajbhandari et al. 2020, section 3 and figure 1: 16 bytes a parameter for Adam in 16 bits, by stage on 8 workers.

    Our sums of gradients have two bytes more; at stage 1 a micro-batch's own gradients stay beside their sum.
    """
    train = TrainConfig(zero_stage=stage, precision=ranks.Precision.bf16)
    own = {1: 4, 2: 2 / 8, 3: 2 / 8}[stage]
    assert parameter_bytes(train, 8).each == pytest.approx(paper + own)
    assert paper == pytest.approx((16 - shared) + shared / 8)


def test_offloading_leaves_what_computes():
    spec = load_spec(
        None, ["train.precision=bf16", "train.zero_stage=2", "train.offload=true", "train.enable_ema=true"]
    )
    taken = parameter_bytes(spec.train, 4)
    assert (taken.master, taken.moments, taken.average) == (0, 0, 0)
    assert taken.of(100) == 100 * 2 + 100 * 2 / 4


@pytest.mark.parametrize(
    ("overrides", "expected"),
    [
        (["zero_stage=0", "enable_ema=true"], (16, 16, 0)),  # every worker has everything: the first one copies
        (["engine=ddp"], (12, 12, 0)),
        (["zero_stage=2", "enable_ema=true"], (4, 16, 4)),
        (["zero_stage=0", "precision=bf16"], (3, 12, 3)),  # it runs as stage 1
        (["zero_stage=3", "optim.optim=sgd", "offload=true"], (0, 8, 2)),
    ],
)
def test_what_a_checkpoint_takes(overrides, expected):
    taken = checkpoint_bytes(load_spec(None, [f"train.{change}" for change in overrides]).train, 4)
    assert (taken.device, taken.first_host, taken.other_host) == expected


@pytest.mark.parametrize(("precision", "quantized"), [("fp32", False), ("bf16", False), ("bf16", True)])
def test_a_validation_copies_the_student(radio_student, precision, quantized):
    student = radio_student()
    train = load_spec(None, [f"train.precision={precision}"]).train
    gpu = torch.device("cuda")  # only its name is used
    copy = student if quantized else in_precision(student, validation_dtype(train, gpu))
    parameters = list(copy.parameters())
    count = sum(parameter.numel() for parameter in parameters)
    assert validation_bytes(train, count, quantized) == sum(p.numel() * p.element_size() for p in parameters)
