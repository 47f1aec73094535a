"""What a run on Ray does to its process; tests/end_to_end has the runs."""

from __future__ import annotations

import signal
import sys
from types import SimpleNamespace

import pytest

from radioplat.launch.ray.run_on_ray import _interruptible, _lost_too_often
from radioplat.spec.schema.root import Spec
from radioplat.tracking.attempts.attempts import Attempts


def test_an_interruption_is_no_success():
    before = signal.getsignal(signal.SIGINT)
    with pytest.raises(KeyboardInterrupt), _interruptible():
        signal.signal(signal.SIGINT, lambda number, frame: sys.exit(0))  # as Ray Train does
        signal.raise_signal(signal.SIGINT)
    assert signal.getsignal(signal.SIGINT) is before


@pytest.mark.parametrize(("cause", "named"), [("node_lost", True), ("worker_killed", True), ("error", False)])
def test_workers_that_are_lost_again_and_again_are_no_defect(tmp_path, cause, named):
    attempts, run = Attempts(tmp_path), SimpleNamespace(folder=tmp_path, spec=Spec())
    assert _lost_too_often(run, 0) is None
    attempts.start(1, 2, 0)
    attempts.end(cause, "rank 1 is gone")
    assert _lost_too_often(run, 1) is None, "an earlier start of the command"
    found = _lost_too_often(run, 0)
    assert (found is not None) == named
    if named:
        assert all(word in str(found) for word in ("train.max_failures", cause, "rank 1 is gone", "diagnose")), found
