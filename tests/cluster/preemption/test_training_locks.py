"""Who trains on a machine is known while it does, and no longer, however it ends."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from radioplat.cluster.preemption.training_locks import training, training_workers

TRAIN = """
import sys
from pathlib import Path
from radioplat.cluster.preemption.training_locks import training
with training(Path(sys.argv[1])):
    print("up", flush=True)
    sys.stdin.readline()
print("left", flush=True)
sys.stdin.readline()
"""


def test_a_worker_that_leaves_and_one_that_dies(tmp_path):
    folder = tmp_path / "training"
    assert training_workers(folder) == []
    command = [sys.executable, "-c", TRAIN, folder]
    workers = [subprocess.Popen(command, stdin=-1, stdout=-1, text=True, bufsize=1) for _ in range(2)]
    try:
        assert [worker.stdout.readline() for worker in workers] == ["up\n"] * 2
        assert sorted(training_workers(folder)) == sorted(worker.pid for worker in workers)
        leaves, dies = workers
        leaves.stdin.write("\n")
        assert leaves.stdout.readline() == "left\n" and leaves.poll() is None
        assert training_workers(folder) == [dies.pid]
        dies.kill()
        dies.wait()
        assert training_workers(folder) == [] and not list(folder.iterdir())
    finally:
        for worker in workers:
            worker.kill()
            worker.communicate()


def test_where_no_lock_can_be_had_it_trains_all_the_same():
    with training(Path("/proc/no/such/folder")):
        assert training_workers(Path("/proc/no/such/folder")) == []


def test_a_folder_or_file_of_somebody_else_is_left_alone(tmp_path):
    """Everybody may make the folder in /tmp first, as a link or with links in it."""
    victim = tmp_path / "victim"
    victim.mkdir(mode=0o700)
    (victim / "thesis").write_text("years of work")
    link = tmp_path / "link"
    link.symlink_to(victim)
    with training(link):
        assert [path.name for path in victim.iterdir()] == ["thesis"]
    (victim / "1234").write_text("a number of one's own")
    assert training_workers(link) == [] and (victim / "1234").exists()
    ours = tmp_path / "ours"
    ours.mkdir(mode=0o700)
    (ours / str(os.getpid())).symlink_to(victim / "thesis")
    with training(ours):
        assert (victim / "thesis").read_text() == "years of work"
    assert training_workers(ours) == [] and (victim / "thesis").exists()
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o777)
    shared.chmod(0o777)
    with training(shared):
        assert not list(shared.iterdir())
