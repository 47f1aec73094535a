"""Ray's processes as forks of one that has imported their modules: real raylets, and a worker that is killed."""

from __future__ import annotations

import os
import signal
import sys
import time

import psutil
import pytest

from clusters.local import WORKER_RESOURCE, LocalCluster
from clusters.worker_forks import SOCKET


@pytest.mark.ray
@pytest.mark.timeout(300)
def test_workers_are_forks_with_an_environment_of_their_own_and_can_be_killed():
    import ray

    with LocalCluster(nodes=1, preload=(["colorsys"], ["ray.data", "wave"])) as cluster:
        ray.init(address=cluster.address, log_to_driver=False)
        socket = os.environ[SOCKET]

        def facts() -> dict:
            """What a worker knows of itself."""
            me = psutil.Process()
            return {
                "pid": me.pid,
                "modules": {"colorsys", "wave"} <= set(sys.modules),
                "variable": os.environ.get("FORKS_TEST"),
                "above": me.parent().cmdline(),
                "title": me.cmdline()[0],
                "id": ray.NodeID.from_random().hex(),
            }

        def there(value: str) -> dict:
            """The facts of a worker with a variable in its environment."""
            place = {"num_cpus": 0.5, "resources": {WORKER_RESOURCE: 0.5}}
            task = ray.remote(facts).options(**place, runtime_env={"env_vars": {"FORKS_TEST": value}})
            return ray.get(task.remote(), timeout=60)

        known = [there("a"), there("b")]
        assert [each["variable"] for each in known] == ["a", "b"] and known[0]["pid"] != known[1]["pid"]
        assert known[0]["id"] != known[1]["id"]  # Ray draws the ids of objects by the same generator
        for each in known:
            assert each["modules"] and "--serve" in each["above"] and each["title"].startswith("ray::")
        os.kill(known[1]["pid"], signal.SIGKILL)
        again = there("b")
        assert again["pid"] != known[1]["pid"] and again["modules"]
        cluster.kill(1)
        limit = time.monotonic() + 30
        while psutil.pid_exists(again["pid"]) and psutil.Process(again["pid"]).status() != psutil.STATUS_ZOMBIE:
            assert time.monotonic() < limit  # it ends with its raylet
            time.sleep(0.1)
    assert SOCKET not in os.environ and not os.path.exists(socket)
