"""A command in an empty home, with a hub on loopback."""

from __future__ import annotations

import os
import sys

import pytest
from forked import Forked


def command(folder: str, *words: str) -> None:
    """Run a command in a folder; the client of the hub is imported anew, for it reads the environment then."""
    os.chdir(folder)
    for name in [name for name in sys.modules if name.partition(".")[0] == "huggingface_hub"]:
        del sys.modules[name]
    from radioplat.cli.main import main

    sys.exit(main(list(words)))


@pytest.fixture
def run(hub, tmp_path):
    """Run a command as a user would, with an empty home and cache, in an empty folder."""

    def started(*words: str, code: int = 0, **variables: str) -> str:
        home = tmp_path / "home"
        home.mkdir(exist_ok=True)
        kept = {k: v for k, v in os.environ.items() if not k.startswith(("HF_", "XDG_", "RADIOPLAT_"))}
        environment = {**kept, "HOME": str(home), "HF_ENDPOINT": hub.url}
        # The hub on loopback has no xet storage: the client then uses LFS, as for a mirror.
        environment |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DISABLE_XET": "1", "COLUMNS": "400", **variables}
        process = Forked(command, str(tmp_path), *words, environment=environment)
        ended = process.wait(100)
        process.kill()
        assert ended == code and "Traceback" not in process.output, process.output[-2000:]
        return process.output

    return started
