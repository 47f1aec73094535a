"""The workers of a restart begin in processes that have imported everything before."""

from __future__ import annotations

import os
import time

import pytest

import radioplat
from benchmarks.elastic_inputs import make_inputs, tiny_spec
from clusters.local import LocalCluster
from radioplat.launch.ray.spare_workers import spare_processes
from radioplat.tracking.attempts.attempts import Attempts

pytestmark = [pytest.mark.timeout(400), pytest.mark.proof]


@pytest.fixture
def environment(ray_environment):
    """Of a quick Ray; as it was afterwards."""
    before = dict(os.environ)
    os.environ.update(ray_environment)
    yield
    os.environ.clear()
    os.environ.update(before)


class Blow:
    """A callback that waits for two spares a node, kills a worker of the second node, and sees who follows."""

    def __init__(self, cluster: LocalCluster) -> None:
        self._cluster = cluster
        self.spares: set[int] = set()
        self.first: set[int] = set()
        self.next: set[int] = set()

    def __call__(self, event: object) -> None:
        workers = {process for number in self._cluster.nodes for process in self._cluster.workers(number)}
        if not self.spares:
            found = set(spare_processes())
            if len(found) == 4:
                self.spares, self.first = found, workers
                self._cluster.kill_worker(2)
        elif len(workers - self.first) == 2:
            self.next = self.next or workers


def test_the_next_group_begins_in_the_spares(environment, tmp_path):
    inputs, results = tmp_path / "inputs", tmp_path / "run"
    make_inputs(inputs)
    with LocalCluster(nodes=2, head_cpus=3) as cluster:
        spec = tiny_spec(inputs, results, 400, (2, 2), resize_interval_s=600.0)
        spec["cluster"] |= {"address": cluster.address, "spare_workers": True}
        blow = Blow(cluster)
        result = radioplat.distill(spec, callbacks=[blow], say=lambda line: None)
        assert result.global_step == 400
        assert blow.next and blow.next < blow.spares, (blow.first, blow.spares, blow.next)
        assert [e.cause for e in Attempts(results / "distill").read() if e.event == "end"] == ["worker_killed", "done"]
        # The cluster is still there, and nobody is kept for a run that is over.
        deadline = time.monotonic() + 30
        while left := list(spare_processes()):
            assert time.monotonic() < deadline, left
            time.sleep(0.5)
