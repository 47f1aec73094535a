"""LightlyTrain in an environment of its own, on top of the packages of this one.

It is AGPL, so nothing of radioplat depends on it or imports it: the benchmark runs it as another program.
"""

from __future__ import annotations

import os
import subprocess
import sys
import sysconfig
import venv
from pathlib import Path

VERSION = "0.18.0"
FOLDER = Path(__file__).parents[1] / ".peers" / f"lightly-{VERSION}"


def lightly_python() -> Path:
    """The interpreter that has LightlyTrain; installs it the first time (about a minute).

    Raises:
        CalledProcessError: pip could not install it.
    """
    python, done = FOLDER / "bin" / "python", FOLDER / ".installed"
    if not done.exists():
        venv.create(FOLDER, with_pip=True, clear=True)
        where = "import sysconfig; print(sysconfig.get_path('purelib'))"
        own = subprocess.check_output([python, "-c", where], text=True)
        # The same torch, timm and Pillow on both sides.
        (Path(own.strip()) / "of_radioplat.pth").write_text(sysconfig.get_path("purelib") + os.linesep)
        install = [python, "-m", "pip", "install", "-qq", f"lightly-train=={VERSION}"]
        subprocess.run(install, check=True, stdout=sys.stderr)
        done.touch()
    return python
