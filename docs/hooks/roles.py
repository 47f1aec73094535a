"""For griffe, which reads docstrings: references of reStructuredText become plain code."""

from __future__ import annotations

import re
from typing import Any

import griffe


class Roles(griffe.Extension):
    """Turn roles as "class" into code, with the last part of a name after ``~``, before docstrings are parsed."""

    def on_object(self, *, obj: griffe.Object, **kwargs: Any) -> None:
        """Change the docstring of ``obj`` in place."""
        if obj.docstring:
            text = re.sub(r":\w+:`~[\w.]*?(\w+)`", r"`\1`", obj.docstring.value)
            obj.docstring.value = re.sub(r":\w+:`([^`]+)`", r"`\1`", text)
