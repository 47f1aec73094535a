"""Ranks of one node that share executions: one that is late, executions in turn, a roll-back, a dead coordinator."""

from __future__ import annotations

import itertools
import os
import signal

import psutil
import pytest

from radioplat.design.run import Run, keep_data
from radioplat.launch.preflight.steps import prepare
from radioplat.spec.loading.load import load_spec

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
STEPS, BATCHES = 40, 2  # of a step and rank


class Rank:
    """An actor with the stream of one of two ranks, as a worker of Ray Train opens it."""

    def __init__(self, run: Run, rank: int, meeting_point: str, steps_per_execution: int | None) -> None:
        import torch
        import torch.distributed as dist

        from radioplat.data.loading import ray_stream
        from radioplat.data.order.micro_batch_schedule import MicroBatchSchedule
        from radioplat.launch.ray.streams import Streams
        from radioplat.training.watch.rank_context import RankContext

        if steps_per_execution:
            ray_stream.MICRO_BATCHES, ray_stream.LEAST_STEPS = 1, steps_per_execution
        dist.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=2)
        self.said: list[str] = []
        self.schedule = MicroBatchSchedule(4, 2, lambda first, last: [(64,)] * (last - first))
        self.streams = Streams(run, RankContext(rank, 2, torch.device("cpu"), True), self.said.append)

    def open(self, start: int) -> list[int]:
        """Open the stream; return the ids of the first micro-batch."""
        self.batches = self.streams.read(start, STEPS, self.schedule)
        return next(self.batches).sample_id.tolist()

    def change(self, step: int, slowness: tuple[float, ...]) -> list[int]:
        """Deal micro-batches anew from ``step`` on; return how many this rank gets of each step."""
        from radioplat.data.order.dealing import Costs

        self.schedule.change(step, Costs(slowness=slowness))
        return [len(self.schedule.of_rank(each, self.streams._rank)) for each in range(STEPS)]

    def take(self, count: int) -> list[int]:
        """Return the ids of the next micro-batches."""
        return [i for batch in itertools.islice(self.batches, count) for i in batch.sample_id.tolist()]

    def rest(self) -> list[int]:
        """Read to the end and close; return the ids of the remaining micro-batches."""
        ids = [i for batch in self.batches for i in batch.sample_id.tolist()]
        self.close()
        return ids

    def close(self) -> list[str]:
        """Close the stream; return what it said."""
        self.batches.close()
        del self.batches
        return self.said


@pytest.fixture
def start_ranks(ray_cluster, make_spec, tmp_path):
    """start_ranks(steps of an execution) -> two actors, and the order of samples."""
    import ray

    spec = load_spec(make_spec(tmp_path / "results"), [f"train.max_steps={STEPS}", "train.global_batch_size=8"])
    run, data = prepare(spec, "distill", tmp_path / "results" / "distill")
    keep_data(run, data)
    ranks: list = []

    def start(steps: int | None = None):
        kind, meet = ray.remote(num_cpus=0)(Rank), str(tmp_path / "meet")
        ranks.extend(kind.remote(run, rank, meet, steps) for rank in range(2))
        return ranks, data.order.slice(0, STEPS * 8).sample_id.tolist()

    yield start
    for rank in ranks:
        ray.kill(rank)


def of_steps(order: list[int], rank: int, first: int, last: int) -> list[int]:
    """The ids of one rank: of four micro-batches of two a step, number j is of rank j mod 2."""
    numbers = [step * 4 + j for step in range(first, last) for j in (rank, rank + 2)]
    return [i for n in numbers for i in order[2 * n : 2 * n + 2]]


@pytest.mark.parametrize("step", [11, pytest.param(20, marks=pytest.mark.proof)])
def test_ranks_follow_a_change_of_the_dealing(start_ranks, step):
    """Inside an execution, and where one that is open already begins; both are dealt by the old costs."""
    import ray

    ranks, order = start_ranks(10)
    read = ray.get([rank.open.remote(0) for rank in ranks])
    more = ray.get([rank.take.remote(17) for rank in ranks])  # the next execution is opened at the 15th
    counts = ray.get([rank.change.remote(step, (3.0, 1.0)) for rank in ranks])
    rest = ray.get([rank.rest.remote() for rank in ranks])
    assert counts[0] == [2] * step + [1] * (STEPS - step) and counts[1] == [2] * step + [3] * (STEPS - step)
    places = [0, 0]
    for each in range(STEPS):
        got: list[int] = []
        for rank in range(2):
            ids = read[rank] + more[rank] + rest[rank]
            got += ids[2 * places[rank] : 2 * (places[rank] + counts[rank][each])]
            places[rank] += counts[rank][each]
        assert sorted(got) == sorted(order[8 * each : 8 * each + 8]), each


def test_a_late_rank_gets_all_its_micro_batches(start_ranks):
    import ray

    ranks, order = start_ranks()
    first = ray.get([rank.open.remote(0) for rank in ranks])
    rest = [ray.get(rank.rest.remote()) for rank in ranks]  # rank 1 begins when rank 0 has read and closed everything
    for rank in range(2):
        assert first[rank] + rest[rank] == of_steps(order, rank, 0, STEPS)


@pytest.mark.proof
def test_executions_in_turn_a_roll_back_and_a_dead_coordinator(start_ranks):
    import ray

    def both(method: str, *arguments: int) -> list:
        return ray.get([getattr(rank, method).remote(*arguments) for rank in ranks], timeout=120)

    ranks, order = start_ranks(8)
    found = both("open", 0)
    found = [ids + more for ids, more in zip(found, both("take", 23 * BATCHES - 1), strict=True)]
    assert found == [of_steps(order, rank, 0, 23) for rank in range(2)]
    assert both("close") == [[], []]

    found = both("open", 10)  # the last execution was begun, and maybe only by one of the ranks
    found = [ids + more for ids, more in zip(found, both("take", 2 * BATCHES), strict=True)]
    coordinators = [p for p in psutil.Process().children(recursive=True) if "ray::SplitCoordinator" in p.cmdline()[0]]
    for process in coordinators:
        os.kill(process.pid, signal.SIGKILL)
    for _ in range(27):
        found = [ids + more for ids, more in zip(found, both("take", BATCHES), strict=True)]
    found = [ids + more for ids, more in zip(found, both("rest"), strict=True)]
    assert coordinators and found == [of_steps(order, rank, 10, STEPS) for rank in range(2)]
