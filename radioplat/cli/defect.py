"""Unexpected exceptions on the command line: a short message, and a file with the traceback."""

from __future__ import annotations

import os
import platform
import shlex
import sys
import tempfile
import traceback
from pathlib import Path

from radioplat import __version__
from radioplat.common import terminal
from radioplat.common.redact import redact
from radioplat.errors import RadioplatError

SHOW = "RADIOPLAT_DEBUG"  # set to anything but 0: the traceback is shown on stderr, too
_MESSAGE = 300  # characters


def show_defect(error: Exception) -> int:
    """Print the error and the path of the traceback file; return the exit status 70 (``EX_SOFTWARE``)."""
    text = redact(f"{_about()}\n{''.join(traceback.format_exception(error))}")
    file = _write(text)
    if file is None or os.environ.get(SHOW, "0") not in ("", "0"):
        terminal.note(text)
    location = f"The traceback is in {file} ({SHOW}=1 shows it here)" if file else "The traceback is above"
    message = " ".join(str(error).split())[:_MESSAGE]
    terminal.show_error(
        RadioplatError(
            f"unexpected {type(error).__name__}{f': {message}' if message else ''}",
            hint=f"This is a defect of radioplat, or of code that the spec names, not of your input. {location}; "
            "please report it to the maintainers with that text.",
        )
    )
    return os.EX_SOFTWARE


def _about() -> str:
    command = shlex.join([Path(sys.argv[0]).name, *sys.argv[1:]])
    return f"radioplat {__version__}, Python {platform.python_version()}, {platform.platform()}\n{command}\n"


def _write(text: str) -> Path | None:
    """Write ``text`` to a new temporary file that only its owner can read; return None if that fails."""
    try:
        handle, name = tempfile.mkstemp(prefix="radioplat-defect-", suffix=".log")
        with open(handle, "w", encoding="utf-8") as file:
            file.write(text)
    except OSError:
        return None
    return Path(name)
