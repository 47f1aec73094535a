"""Positions that ``diagnose`` finds in the stacks of a hung rank."""

from __future__ import annotations

import faulthandler
import importlib.util
import threading

from radioplat.tasks.inspect.diagnose import _place

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
