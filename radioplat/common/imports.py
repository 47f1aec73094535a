"""Import objects of users' code, given in the spec as ``package.module:name``."""

from __future__ import annotations

import importlib
from typing import Any

from radioplat.errors import SpecError


def import_object(path: str, where: str) -> Any:  # noqa: ANN401
    """Import ``package.module:name``.

    Args:
        path: the import path.
        where: spec field that contains the path, for messages.

    Raises:
        SpecError: the module cannot be imported, or has no such name.
    """
    module, _, name = path.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except Exception as error:  # a user's module may raise anything while it is imported
        message = f"cannot import {path}: {type(error).__name__}: {error}"
        hint = "Write package.module:name, and put the package on the PYTHONPATH of every worker."
        raise SpecError(message, where=where, hint=hint) from None
