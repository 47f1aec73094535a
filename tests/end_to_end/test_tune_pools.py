"""The teachers' pools of a sweep, in a cluster where other pools run, too."""

from __future__ import annotations

import pytest
import ray

from radioplat.spec.resolved.teacher import frozen_teachers
from radioplat.tasks.tune.sweep import make_plan, trial_spec
from radioplat.tasks.tune.trial_record import TrialRecord
from radioplat.tasks.tune.tune import _pools
from radioplat.teachers.serving.named_pools import pool_statuses, start_pools

SPACE = {"parameters": {"train.optim.lr": {"grid": [1e-3, 3e-3]}}, "objectives": [{"metric": "macs", "mode": "min"}]}


@pytest.fixture(scope="module")
def cluster():
    ray.init(num_cpus=3, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()


@pytest.mark.proof
@pytest.mark.timeout(200)
def test_a_sweep_ends_its_own_pool_and_no_other(cluster, make_spec, tmp_path):
    def plan_of(name, **teacher):
        spec = make_spec(tmp_path / name)
        spec["distill"]["teacher"] = spec["distill"]["teacher"][1:]
        spec["teachers"] = {"vit": {"num_cpus": 0.5, **teacher}}
        return make_plan(spec, (), SPACE | {"search": {"algorithm": "grid"}})

    lab, own = plan_of("lab", pool="lab"), plan_of("own")
    for plan in (lab, own):  # the second as a start leaves it that was killed
        start_pools(frozen_teachers(trial_spec(plan, TrialRecord(0, {}))), {"vit": 0.0})
    assert [pool.name for pool in pool_statuses()] == ["lab", own.pool]
    with _pools(lab, False):
        pass
    assert [pool.name for pool in pool_statuses()] == ["lab", own.pool]
    with _pools(own, False):
        assert [pool.name for pool in pool_statuses()] == ["lab", own.pool]
    assert [pool.name for pool in pool_statuses()] == ["lab"]
