"""Named teacher pools for a run in one process, such as a trial of a sweep inside a cluster that has the pools."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import TYPE_CHECKING

from radioplat.design.run import Run
from radioplat.tracking.status import StatusLog

if TYPE_CHECKING:
    from radioplat.teachers.serving.remote_teacher import RemoteTeacher


def joined_pools(run: Run, device: str) -> Mapping[str, RemoteTeacher]:
    """Return the pools that ``teachers.<name>.pool`` names, by teacher; none if this process has not joined a cluster.

    Args:
        device: device type of the student, ``cpu`` or ``cuda``.

    Raises:
        SpecError: a pool serves another teacher.
        PlacementError, WeightsError: a pool cannot start.
    """
    named = [teacher for teacher in run.frozen_teachers if teacher.service.pool]
    if not named or "ray" not in sys.modules or not sys.modules["ray"].is_initialized():
        return {}
    from radioplat.cluster.resources import teacher_gpus
    from radioplat.teachers.serving.remote_teacher import await_pool, start_pool

    def warn(line: str) -> None:
        """Write a warning to ``status.json``."""
        with StatusLog(run.folder / "status.json") as status:
            status.write(line, verbosity="WARNING")

    pools = {t.name: start_pool(t, run.grids[t.name], teacher_gpus(t.service.num_gpus, device != "cpu")) for t in named}
    for pool in pools.values():
        await_pool(pool)
        pool.say = warn
        pool.choose_transport(device, run.feature_cache is not None and pool.service.cache)
    return pools
