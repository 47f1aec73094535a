"""Who sees which micro-batch, whatever the world size, and that the expected gradient is the unpartitioned one."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from radioplat.data.batch import Batch, View
from radioplat.data.order.micro_batch_schedule import MicroBatchSchedule
from radioplat.design.partitions import Partitions
from radioplat.models.features import Features
from radioplat.models.heads import HeadArchitecture
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.objectives.distill import DistillObjective, MicroBatch
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.teacher import resolve_teachers
from radioplat.spec.schema.distill import PartitionConfig
from radioplat.training.feed.feeder import Feeder

B, G = 2, 3
THIRDS = Partitions.of([PartitionConfig(0.333333, ["a"]), PartitionConfig(0.666667, ["b"])], seed=5, micro_batches=G)
SPEC = load_spec({
    "dataset": {"img_size": 32},
    "distill": {"teacher": [
        {"name": "a", "mode": "combo", "loss_type": "MSE", "summary_loss_type": "cosine", "loss_lambda": 0.5},
        {"name": "b", "loss_type": "KL", "loss_lambda": 2.0},
        {"name": "c", "mode": "summary", "loss_type": "L2", "loss_lambda": 1.0},
    ]},
})  # fmt: skip
TEACHERS = resolve_teachers(SPEC)


@given(
    counts=st.lists(st.integers(1, 7), min_size=1, max_size=5),
    shared=st.lists(st.booleans(), min_size=5, max_size=5),
    seed=st.integers(0, 2**40),
    step=st.integers(0, 2**31),
)
def test_every_step_has_the_shares_and_the_factors_average_to_one(counts, shared, seed, step):
    whole = sum(counts)
    config = [
        PartitionConfig(count / whole, [f"own{p}", *(["shared"] if shared[p] else [])])
        for p, count in enumerate(counts)
    ]
    partitions = Partitions.of(config, seed, whole)
    assert np.bincount(partitions.of_step(step), minlength=len(counts)).tolist() == counts
    factors = [partitions.factors(step * whole + place) for place in range(whole)]
    for p, count in enumerate(counts):
        seen = [found[f"own{p}"] for found in factors]
        assert sorted(set(seen) - {0.0}) == [whole / count] and sum(f > 0 for f in seen) == count
    named = "shared" in factors[0]
    assert named == any(shared[: len(counts)]) and all(("shared" in found) == named for found in factors)
    for name in factors[0]:
        assert sum(found[name] for found in factors) == pytest.approx(whole)
        assert partitions.seen_by(name) == sum(found[name] > 0 for found in factors)
    assert partitions.seen_by("in none of them") == whole


def test_without_partitions_nothing_changes():
    assert Partitions.of([], 1, 4).factors(7) == {}
    whole = Partitions.of([PartitionConfig(1.0, ["a", "b"])], 1, 4)
    assert whole.factors(7) == {"a": 1.0, "b": 1.0}


def test_a_place_goes_with_every_partition_as_often_as_its_share_says():
    steps = 3000
    first = np.array([THIRDS.of_step(step) for step in range(steps)])
    assert np.abs((first == 0).mean(0) - 1 / 3).max() < 0.03  # three standard deviations
    other = dataclasses.replace(THIRDS, seed=6)
    assert any((other.of_step(step) != first[step]).any() for step in range(10))
    assert (THIRDS.of_step(17) == first[17]).all()


@pytest.fixture(scope="module")
def module() -> DistillObjective:
    heads = (
        HeadArchitecture("a", summary_dim=6, spatial_dim=5),
        HeadArchitecture("b", logits_dim=7, token_slot=1),
        HeadArchitecture("c", summary_dim=4, token_slot=2),
    )
    kwargs = dict(embed_dim=16, depth=1, num_heads=2, patch_size=8)
    torch.manual_seed(0)
    architecture = StudentArchitecture(
        "c_radio_v3_vit_base_patch16_reg4_dinov2", kwargs, num_class_tokens=3, img_size=32, heads=heads
    )
    return DistillObjective(Student(architecture).eval(), TEACHERS, "32")


def micro_batch(place: int, factors: dict[str, float]) -> MicroBatch:
    """The one at ``place`` of every step; what no teacher was asked for is zeros, as in the worker."""
    generator = torch.Generator().manual_seed(place)
    pixels = torch.randint(0, 256, (B, 3, 32, 32), dtype=torch.uint8, generator=generator)
    targets = {
        "a": Features(torch.randn(B, 6, generator=generator), torch.randn(B, 2, 2, 5, generator=generator)),
        "b": Features(named={"logits": torch.randn(B, 7, generator=generator)}),
        "c": Features(torch.randn(B, 4, generator=generator)),
    }
    for name, factor in factors.items():
        targets[name] = targets[name] if factor else targets[name].map(torch.zeros_like)
    return MicroBatch({"32": pixels}, torch.ones(B), torch.full((B,), -1), targets, factors)


def learn(module: DistillObjective, factors: list[dict[str, float]]) -> tuple[torch.Tensor, dict[str, float]]:
    """Gradient of a step's loss by all parameters, and the means of its terms."""
    module.zero_grad()
    means: dict[str, float] = {}
    for place, found in enumerate(factors):
        losses = module(micro_batch(place, found))
        (losses["loss"] / G).backward()
        for name, value in losses.items():
            means[name] = means.get(name, 0.0) + float(value.detach()) / G
    return torch.cat([p.grad.flatten() for p in module.parameters() if p.grad is not None]), means


def test_the_mean_over_all_assignments_is_the_unpartitioned_step(module):
    whole, terms = learn(module, [{}] * G)
    steps = {tuple(THIRDS.of_step(step).tolist()): step for step in range(40)}
    assert sorted(steps) == [(0, 1, 1), (1, 0, 1), (1, 1, 0)], "each as likely as the others: see the test above"
    found = [learn(module, [THIRDS.factors(step * G + place) for place in range(G)]) for step in steps.values()]
    assert not torch.allclose(found[0][0], whole, rtol=0.05)
    torch.testing.assert_close(sum(gradient for gradient, _ in found) / G, whole, rtol=1e-4, atol=1e-6)
    for name, value in terms.items():
        assert sum(means[name] for _, means in found) / G == pytest.approx(value, rel=1e-5), name


def test_a_logged_term_is_the_mean_over_what_the_teacher_saw(module):
    alone = [{name: value.item() for name, value in module(micro_batch(place, {})).items()} for place in range(G)]
    _, means = learn(module, [THIRDS.factors(place) for place in range(G)])
    for name, partition in (("loss/a/summary", 0), ("loss/a/spatial", 0), ("loss/b/logits", 1)):
        seen = [alone[place][name] for place in np.flatnonzero(THIRDS.of_step(0) == partition)]
        assert means[name] == pytest.approx(np.mean(seen), rel=1e-5), name
    assert means["loss/c/summary"] == pytest.approx(np.mean([terms["loss/c/summary"] for terms in alone]), rel=1e-5)


def test_a_head_whose_teacher_was_not_asked_takes_part_with_zeros(module):
    """ZeRO's collectives need every parameter on every rank, whoever sees the rank's micro-batch."""
    module.zero_grad()
    losses = module(micro_batch(0, {"a": 0.0, "b": 1.5}))
    losses["loss"].backward()
    assert losses["loss/a/summary"] == losses["loss/a/spatial"] == 0 < losses["loss/b/logits"]
    for name, parameter in module.student.heads.named_parameters():
        assert parameter.grad is not None, name
        assert name.startswith("a.") == (not parameter.grad.any()), name


class Recorder:
    """A client that notes what it is asked for."""

    def __init__(self, name: str) -> None:
        self.name, self.asked = name, []

    def share(self, pixels: np.ndarray, batch: Batch | None = None) -> np.ndarray:
        return pixels

    def submit(self, shared: np.ndarray, micro_batch: int):
        self.asked.append(micro_batch)
        return lambda: None

    def precision(self) -> str:
        return "float32"


def batch_of(micro_batch: int) -> Batch:
    nothing, view = np.zeros(B, np.int64), View(np.zeros((B, 3, 32, 32), np.uint8), np.zeros((B, 3, 3), np.float32))
    return Batch(micro_batch, {"32": view}, nothing, nothing, np.full(B, micro_batch >= 0, np.float32), nothing)


def asked(partitions: Partitions, world_size: int, start: int, stop: int) -> dict[str, list[int]]:
    """Micro-batches that each teacher is asked for by all ranks together."""
    schedule, found = (
        MicroBatchSchedule(partitions.micro_batches, world_size),
        {teacher.name: [] for teacher in TEACHERS},
    )
    for rank in range(world_size):
        mine = [micro_batch for step in range(start, stop) for micro_batch in schedule.of_rank(step, rank)]
        clients = {name: Recorder(name) for name in found}
        fed = list(Feeder(map(batch_of, mine), clients, TEACHERS, 2, partitions))
        assert [batch.micro_batch for batch, _ in fed] == mine
        for name, client in clients.items():
            assert client.asked == [batch.micro_batch for batch, answers in fed if name in answers]
            found[name] += client.asked
    return {name: sorted(numbers) for name, numbers in found.items()}


def test_the_same_teacher_at_every_world_size_and_after_a_restart():
    config = [PartitionConfig(0.5, ["a"]), PartitionConfig(0.5, ["b"])]
    partitions = Partitions.of(config, 1234, 6)
    alone = asked(partitions, 1, 0, 8)
    assert not set(alone["a"]) & set(alone["b"]) and alone["c"] == list(range(48))
    for step in range(8):
        here = range(6 * step, 6 * step + 6)
        assert [len(set(here) & set(alone[name])) for name in "ab"] == [3, 3]
    for world_size in (2, 4):  # at 4 two ranks have padding
        assert asked(partitions, world_size, 0, 8) == alone
    late = {name: [n for n in numbers if n >= 30] for name, numbers in alone.items()}
    assert asked(partitions, 2, 5, 8) == late
