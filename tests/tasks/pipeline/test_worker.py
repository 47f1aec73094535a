"""How the end of a node's process is read."""

from __future__ import annotations

import signal

import pytest

from radioplat.errors import Problem, Stopped
from radioplat.tasks.compress.outcome import Outcome
from radioplat.tasks.pipeline.local_runner import error_of
from radioplat.tasks.pipeline.worker import Job, NodeResult, read_result


@pytest.fixture
def job(tmp_path) -> Job:
    """A job in a folder."""
    return Job("a", "distill", str(tmp_path), {}, "fingerprint", str(tmp_path))


def test_a_result_is_that_of_its_fingerprint(job, tmp_path):
    result = NodeResult("fingerprint", Outcome("there", 5), {"there": "0"})
    result.write(tmp_path)
    assert read_result(tmp_path, "fingerprint") == result and read_result(tmp_path, "another") is None
    assert error_of(job, 0) is None


def test_a_process_that_leaves_no_result_has_failed(job, tmp_path):
    assert "its process ended with signal 9. See" in str(error_of(job, -signal.SIGKILL))
    assert "its process ended with status 0" in str(error_of(job, 0))
    assert isinstance(error_of(job, Stopped().code), Stopped)


def test_problems_are_passed_on(job, tmp_path):
    problem = Problem("this is wrong", "train.seed", "Mend it.")
    NodeResult("fingerprint", problems=(problem,)).write(tmp_path)
    assert error_of(job, 1).problems == [problem]
