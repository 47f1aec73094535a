"""What SIGTERM does to a process that heeds it: real signals to real processes."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading

import pytest

from radioplat.cli.main import guarded
from radioplat.common.sigterm import forwarding_sigterm, handling_sigterm, install_handler, stop_requested
from radioplat.errors import RadioplatError, Stopped

RUN = """
import signal, sys, time
from radioplat.common.sigterm import handling_sigterm, forwarding_sigterm, install_handler

def say(word):
    print(word, flush=True)

with handling_sigterm():
    if sys.argv[1] == "steps":
        with forwarding_sigterm(lambda: say("asked")):
            say("up")
            time.sleep(30)
    if sys.argv[1] == "taken":  # as ray.init does
        signal.signal(signal.SIGTERM, lambda number, frame: sys.exit(number))
    say("up")
    time.sleep(30)
"""


@pytest.fixture
def start():
    """start(what): a process that heeds SIGTERM; it has said that it is up."""
    begun = []

    def run(what: str) -> subprocess.Popen:
        begun.append(subprocess.Popen([sys.executable, "-c", RUN, what], stdout=subprocess.PIPE, text=True))
        assert begun[-1].stdout.readline() == "up\n"
        return begun[-1]

    yield run
    for process in begun:
        process.kill()
        process.wait()


@pytest.mark.parametrize("what", ["nothing to save", "taken"])
def test_where_nothing_is_to_save_it_leaves_at_once(start, what):
    process = start(what)
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == os.EX_TEMPFAIL == 75


def test_the_first_is_passed_on_and_the_second_ends_it(start):
    process = start("steps")
    process.send_signal(signal.SIGTERM)
    assert process.stdout.readline() == "asked\n" and process.poll() is None
    process.send_signal(signal.SIGTERM)
    assert process.wait(10) == -signal.SIGTERM


def test_afterwards_all_is_as_before():
    before = signal.getsignal(signal.SIGTERM)
    with pytest.raises(Stopped), handling_sigterm():
        with forwarding_sigterm(lambda: None):
            pass
        try:
            signal.raise_signal(signal.SIGTERM)
        finally:
            assert stop_requested()
    assert signal.getsignal(signal.SIGTERM) is before and not stop_requested(), "another run was not told to stop"


def test_in_another_thread_signals_are_left_alone():
    before = signal.getsignal(signal.SIGTERM)
    seen = []

    def run() -> None:
        with handling_sigterm(), forwarding_sigterm(lambda: None):
            install_handler()
            seen.append(signal.getsignal(signal.SIGTERM) is before)

    thread = threading.Thread(target=run)
    thread.start()
    thread.join()
    assert seen == [True]


def test_it_is_no_failure_that_a_stage_might_handle(capsys):
    def told_to_stop() -> None:
        try:
            raise Stopped
        except Exception as error:  # what a chain of stages does
            raise RadioplatError("handled") from error

    assert "stopped by SIGTERM" in str(Stopped())  # in the log of a task around it
    assert guarded(told_to_stop) == 75
    assert capsys.readouterr().err == f"exit status 75: {Stopped()}\n", "what a scheduler's log keeps"
