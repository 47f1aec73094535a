"""Compute the timeout of collectives between the ranks."""

from __future__ import annotations

from datetime import timedelta

from radioplat.spec.schema.cluster import TeacherServiceConfig
from radioplat.spec.schema.root import Spec

_LEAST_S = 86_400.0


def collective_timeout(spec: Spec) -> timedelta:
    """Return the timeout of the process group: one day, or more if the spec allows a rank to wait longer.

    A rank waits in a collective while another rank waits for data or a teacher, or writes a checkpoint; none of these
    is an error. :class:`radioplat.training.watch.watchdog.Watchdog` detects hangs, because it knows the state of the
    other ranks; this timeout is for the cases that it cannot detect.
    """
    data = spec.dataset.read_timeout_s + spec.dataset.storage_timeout_s
    services = [*spec.teachers.values(), TeacherServiceConfig()]
    teacher = max(max(s.start_timeout_s, s.recovery_timeout_s + 3 * s.timeout_s) for s in services)
    return timedelta(seconds=max(_LEAST_S, 2 * (spec.train.hang_timeout_s + data + teacher)))
