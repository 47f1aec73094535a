"""Who computes when several share a machine's cores."""

from __future__ import annotations

import os
import threading

import torch

from radioplat.common.cpu_threads import lower_thread_priority, share_cores


def test_a_thread_that_gives_way_leaves_the_others_alone():
    found = {}

    def work() -> None:
        lower_thread_priority()
        lower_thread_priority()  # a second time it is as low as it can be
        found["mine"] = os.getpriority(os.PRIO_PROCESS, threading.get_native_id())

    thread = threading.Thread(target=work)
    thread.start()
    thread.join()
    assert found["mine"] == 19 > os.getpriority(os.PRIO_PROCESS, threading.get_native_id())


def test_workers_with_less_than_a_core_share_all():
    before, cores = torch.get_num_threads(), len(os.sched_getaffinity(0))
    try:
        torch.set_num_threads(1)
        share_cores(1.0, 1)
        assert torch.get_num_threads() == 1
        share_cores(0.5, 1)
        assert torch.get_num_threads() == cores
        share_cores(0.5, 2 * cores)
        assert torch.get_num_threads() == 1
    finally:
        torch.set_num_threads(before)
