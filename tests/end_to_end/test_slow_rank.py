"""A rank that reads its part of the stream long after rank 0 has read its own."""

from __future__ import annotations

import pytest

from radioplat.design.run import Run, keep_data
from radioplat.launch.preflight.steps import prepare
from radioplat.spec.loading.load import load_spec

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]
STEPS = 40


class Rank:
    """An actor with the stream of one of two ranks, as a worker of Ray Train opens it."""

    def __init__(self, run: Run, rank: int, meeting_point: str) -> None:
        import torch.distributed as dist

        from radioplat.common import collectives

        dist.init_process_group("gloo", init_method=f"file://{meeting_point}", rank=rank, world_size=2)
        self.run, self.rank, self.channel = run, rank, collectives.open_channel()

    def open(self) -> list[int]:
        """Open the stream; return the ids of the first micro-batch."""
        import torch

        from radioplat.launch.ray.ray_worker import Streams
        from radioplat.training.watch.rank_context import RankContext

        self.streams = Streams(self.run, RankContext(self.rank, 2, torch.device("cpu"), True), self.channel)
        self.batches = self.streams.read(0, STEPS)
        return next(self.batches).sample_id.tolist()

    def rest(self) -> list[int]:
        """Read to the end and close; return the ids of the remaining micro-batches."""
        ids = [i for batch in self.batches for i in batch.sample_id.tolist()]
        self.batches.close()
        del self.batches
        return ids


def test_it_gets_all_its_micro_batches(ray_cluster, make_spec, tmp_path):
    import ray

    spec = load_spec(make_spec(tmp_path / "results"), [f"train.max_steps={STEPS}", "train.global_batch_size=8"])
    run, data = prepare(spec, "distill", tmp_path / "results" / "distill")
    keep_data(run, data)
    ranks = [ray.remote(num_cpus=0)(Rank).remote(run, rank, str(tmp_path / "meet")) for rank in range(2)]
    first = ray.get([rank.open.remote() for rank in ranks])
    rest = [ray.get(rank.rest.remote()) for rank in ranks]  # rank 1 begins when rank 0 has read and closed everything
    ids = [i for rank in range(2) for i in first[rank] + rest[rank]]
    assert sorted(ids) == sorted(data.order.slice(0, STEPS * 8).sample_id.tolist())
    for rank in ranks:
        ray.kill(rank)
