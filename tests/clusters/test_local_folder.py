"""``clusters/local.sh`` where something else is at its folder's place, or has the number of one of its processes."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest


@pytest.fixture
def script(clusters, tmp_path):
    """script(command, folder=None) -> the finished process."""

    def run(command: str, folder: Path | None = None) -> subprocess.CompletedProcess:
        environment = os.environ | {"XDG_STATE_HOME": str(tmp_path / "state"), "PYTHON": sys.executable}
        environment.pop("RADIOPLAT_LOCAL_FOLDER", None)
        if folder is not None:
            environment["RADIOPLAT_LOCAL_FOLDER"] = str(folder)
        return subprocess.run(
            [clusters / "local.sh", command], env=environment, capture_output=True, text=True, timeout=60, check=False
        )

    return run


@pytest.fixture
def bystander():
    """A process in a group of its own, and when it started."""
    process = subprocess.Popen(["sleep", "60"], start_new_session=True)
    yield process, int(Path(f"/proc/{process.pid}/stat").read_text().rpartition(")")[2].split()[19])
    process.kill()
    process.wait()


def made(folder: Path, groups: str) -> Path:
    """A cluster's folder with a file of groups."""
    folder.mkdir(mode=0o700)
    (folder / "groups").write_text(groups)
    return folder


def test_down_ends_what_it_started(script, tmp_path, bystander):
    process, born = bystander
    folder = made(tmp_path / "ours", f"{process.pid} {born}\n")
    threading.Thread(target=process.wait, daemon=True).start()  # a process that nobody waits for is there after its end
    assert script("down", folder).returncode == 0
    assert process.wait(5) == -15 and not folder.exists()


def test_down_leaves_a_process_that_got_the_number_later(script, tmp_path, bystander):
    process, born = bystander
    folder = made(tmp_path / "ours", f"{process.pid} {born - 1}\n")
    assert script("down", folder).returncode == 0 and process.poll() is None and not folder.exists()


def test_what_somebody_else_put_there_is_no_cluster(script, tmp_path, bystander):
    """A link to a file of groups names processes, and a token, of somebody else's choice."""
    process, born = bystander
    victim = made(tmp_path / "victim", f"{process.pid} {born}\n")
    link = tmp_path / "link"
    link.symlink_to(victim)
    assert script("environment", link).returncode == 1
    assert script("down", link).returncode == 0 and process.poll() is None and (victim / "groups").exists()
    assert script("up", link).returncode == 1 and [path.name for path in victim.iterdir()] == ["groups"]


def test_a_folder_that_is_there_is_not_taken(script, tmp_path):
    """`down` removes the folder, so one with files of the user's own is never the cluster's."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    (folder / "thesis").write_text("years of work")
    done = script("up", folder)
    assert done.returncode == 1 and str(folder) in done.stderr
    assert script("down", folder).returncode == 0 and (folder / "thesis").exists()


def test_without_a_cluster_nothing_is_done(script):
    assert script("down").returncode == 0 and script("environment").returncode == 1
