"""A command in an empty home, with a hub on loopback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.fixture
def run(hub, tmp_path):
    """Run a command as a user would, with an empty home and cache, in an empty folder."""

    def command(*words: str, code: int = 0, **variables: str) -> str:
        home = tmp_path / "home"
        home.mkdir(exist_ok=True)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "XDG_", "RADIOPLAT_"))}
        environment = {**kept, "HOME": str(home), "HF_ENDPOINT": hub.url, "PYTHONPATH": str(Path(__file__).parents[3])}
        # The hub on loopback has no xet storage: the client then uses LFS, as for a mirror.
        environment |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_XET": "1", "COLUMNS": "400", **variables}
        line = [sys.executable, "-m", "radioplat.cli", *words]
        done = subprocess.run(line, cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=100)
        assert done.returncode == code and "Traceback" not in done.stderr, done.stderr[-2000:]
        return done.stdout + done.stderr

    return command
