"""Copies to and from a device: nothing on a CPU; on the judge's substitute for CUDA, and on a GPU, bit for bit."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
import torch

from radioplat.common.device_copies import DeviceCopies, receive, tensor_of, to_host

# The substitute changes torch, hence a process of its own.
BEGIN = """
import torch
from benchmarks.judges.cuda_substitute import COUNTS, substitute
substitute()
from radioplat.common import device_copies as d
device = torch.device("cuda", 0)
"""
ROUND = """
copies = d.DeviceCopies(device)
for size in (5, 1000, 70, 0, 3000, 3, 7, 7, 7, 7):
    given = [torch.arange(size), torch.rand(size, 3), torch.rand(2, size).bfloat16(), torch.rand(size) > 0.5]
    with copies.group() as group:
        there = [group.put(tensor) for tensor in given]
        assert group.put(there[0]) is there[0]
    d.receive(group.done, there)
    for tensor, back in zip(given, d.to_host([tensor + 0 for tensor in there]), strict=True):
        assert back.dtype == (tensor + 0).dtype and torch.equal(back, tensor + 0), size
"""
CHECK = """
bad = [key for key in COUNTS.bytes if "unpinned" in key]
assert not COUNTS.errors and not bad and not COUNTS.waits, (COUNTS.errors, bad, COUNTS.waits)
assert COUNTS.bytes
"""
# Each is one line of the module less.
MISTAKES = {
    "the stream does not wait": ("receive = lambda done, tensors: d.keep_for_this_stream(tensors)", "does not wait"),
    "nobody tells the allocator": ("keep_for_this_stream = lambda tensors: None", "record_stream"),
    "the ring does not wait": ("torch.cuda.Event.synchronize = lambda self: None", "pinned memory in use"),
}


def run(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", BEGIN + code], capture_output=True, text=True, timeout=110)


def test_groups_of_any_size_arrive_whole_and_without_a_hazard():
    done = run(ROUND + CHECK)
    assert done.returncode == 0, done.stderr[-2000:]


@pytest.mark.parametrize("mistake", MISTAKES)
def test_the_judge_finds_each_mistake(mistake):
    change, message = MISTAKES[mistake]
    change = change if change.startswith("torch") else f"d.{change}"
    done = run(change + ROUND + CHECK)
    assert done.returncode and message in done.stderr, done.stderr[-2000:]


def test_on_a_cpu_the_same_memory_is_returned():
    tensor = torch.rand(3)
    with DeviceCopies(torch.device("cpu")).group() as group:
        assert group.put(tensor) is tensor
    receive(group.done, [tensor])
    assert group.done is None and to_host([tensor])[0] is tensor


def test_read_only_memory_is_shared_without_a_warning(recwarn):
    array = np.arange(12, dtype=np.uint8).reshape(3, 4)
    array.flags.writeable = False
    tensor = tensor_of(array)
    assert tensor.data_ptr() == array.ctypes.data and tensor.tolist() == array.tolist() and not recwarn.list
    assert tensor_of(array[:, ::-1]).tolist() == array[:, ::-1].tolist()
    assert tensor_of(np.zeros((2, 0, 6), np.float32)).shape == (2, 0, 6)
    del array
    assert tensor.sum() == 66, "the tensor keeps the memory"


@pytest.mark.gpu
@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
def test_on_a_gpu_every_bit_arrives():
    copies, device = DeviceCopies(torch.device("cuda", 0)), torch.device("cuda", 0)
    for size in (5, 1 << 20, 70, 3 << 20):
        given = torch.randint(0, 256, (size,), dtype=torch.uint8)
        with copies.group() as group:
            there = group.put(given)
        receive(group.done, [there])
        assert there.device == device and torch.equal(to_host([there + 1])[0], given + 1)
