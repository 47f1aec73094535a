"""``clusters/local.sh`` takes no folder that somebody else could have made."""

from __future__ import annotations

import os
import subprocess

import pytest


@pytest.mark.parametrize("command", ["up", "down", "environment"])
def test_a_folder_that_is_a_link_is_refused_and_its_processes_go_on(clusters, tmp_path, command):
    theirs, ours = tmp_path / "theirs", tmp_path / "ours"
    theirs.mkdir()
    ours.symlink_to(theirs)
    with subprocess.Popen(["sleep", "60"], start_new_session=True) as victim:
        (theirs / "groups").write_text(f"{victim.pid}\n")
        (theirs / "address").write_text("attacker:6379")
        (theirs / "dashboard").write_text("attacker:8265")
        environment = os.environ | {"RADIOPLAT_LOCAL_FOLDER": str(ours)}
        done = subprocess.run([clusters / "local.sh", command], env=environment, capture_output=True, text=True)
        running = victim.poll() is None
        victim.kill()
    assert done.returncode == 1 and "is not a folder of yours" in done.stderr and not done.stdout
    assert running and (theirs / "groups").exists()
