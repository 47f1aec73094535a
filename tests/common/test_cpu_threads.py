"""Who computes when several share a machine's cores."""

from __future__ import annotations

import os
import subprocess
import sys
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


LARGE = """
import resource, torch
from radioplat.common.cpu_threads import keep_freed_memory
if {keeps}:
    keep_freed_memory()
for _ in range(8):
    torch.ones(2**25)  # 128 MiB; the heap grows
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(20):
    torch.ones(2**25)
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


def test_freed_memory_is_not_cleared_again():
    faults = []
    for keeps in (False, True):
        command = [sys.executable, "-c", LARGE.format(keeps=keeps)]
        faults.append(int(subprocess.run(command, check=True, capture_output=True, text=True).stdout))
    assert faults[1] < faults[0] / 10, faults
