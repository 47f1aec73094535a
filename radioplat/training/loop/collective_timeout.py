"""The timeout of collectives between the ranks."""

from __future__ import annotations

from datetime import timedelta

from radioplat.spec.schema.cluster import TeacherServiceConfig
from radioplat.spec.schema.root import Spec

_LEAST_S = 86_400.0


def collective_timeout(spec: Spec) -> timedelta:
    """The timeout of the process group: a day, or more where the spec lets a rank stand still for longer.

    A rank waits in a collective for as long as another one waits for data, for a teacher, or writes a checkpoint, and
    none of that is an error. :class:`radioplat.training.watch.watchdog.Watchdog` finds hangs, for it sees what the
    others do; this is for what it cannot see.
    """
    data = spec.dataset.read_timeout_s + spec.dataset.storage_timeout_s
    services = [*spec.teachers.values(), TeacherServiceConfig()]
    teacher = max(max(s.start_timeout_s, s.recovery_timeout_s + 3 * s.timeout_s) for s in services)
    return timedelta(seconds=max(_LEAST_S, 2 * (spec.train.hang_timeout_s + data + teacher)))
