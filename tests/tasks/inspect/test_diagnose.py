"""Positions that ``diagnose`` finds in the stacks of a hung rank."""

from __future__ import annotations

import faulthandler
import importlib.util
import threading

import pytest

from radioplat.tasks.inspect.diagnose import _place, _signs
from radioplat.tracking.attempts.logs import attempt_folder

READER = """import threading
def read(): ready.set(); done.wait()
def run_worker(): read()
run_worker()
"""


def test_the_training_thread_is_the_one_in_the_workers_loop(tmp_path):
    """Real stacks of two threads, one of them with a frame in the file of the training loop."""
    ready, done = threading.Event(), threading.Event()
    spec = importlib.util.find_spec("radioplat.training.loop.worker")
    assert spec is not None and spec.origin  # not imported: it needs DeepSpeed
    code = compile(READER, spec.origin, "exec")
    thread = threading.Thread(target=exec, args=(code, {"ready": ready, "done": done}))
    thread.start()
    try:
        assert ready.wait(10)
        with (tmp_path / "stacks_0.txt").open("w") as file:
            faulthandler.dump_traceback(file, all_threads=True)
    finally:
        done.set()
        thread.join()
    place = _place(tmp_path / "stacks_0.txt")
    assert "training/loop/worker.py:2 in read" in place and "threading.py" in place


@pytest.mark.parametrize(
    ("line", "meaning"),
    [
        ("RuntimeError: CUDA error: out of memory", "memory ran out"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`", "memory ran out"),
        ("RuntimeError: cuDNN error: CUDNN_STATUS_ALLOC_FAILED", "memory ran out"),
        (
            "radioplat.errors.TeacherOutOfMemory: teachers.t.max_batch: teacher t ran out of memory in a",
            "a teacher ran",
        ),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB", "memory ran out"),
        ("RuntimeError: CUDA error: an illegal memory access was encountered", "a GPU failed"),
        ("NVRM: Xid (PCI:0000:65:00): 79", "a GPU failed"),
    ],
)
def test_what_a_log_line_means(tmp_path, line, meaning):
    folder = attempt_folder(tmp_path, 1)
    folder.mkdir(parents=True)
    (folder / "worker_0.log").write_text(f"step 1\n{line}\nmore\n")
    (sign,) = _signs(tmp_path, 1)
    assert sign.startswith(meaning)
