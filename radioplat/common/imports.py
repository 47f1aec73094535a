"""Imports whose failure is a message: of users' code, given in the spec, and of optional packages."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager
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


@contextmanager
def needs(package: str, backend: str) -> Iterator[None]:
    """Turn an ImportError in the block into a :class:`SpecError` that says what to install.

    Args:
        package: name on the package index.
        backend: value of ``quantize.backend`` that needs it.

    Raises:
        SpecError: an import failed.
    """
    try:
        yield
    except ImportError as error:
        reason = str(error).splitlines()[0]
        hint = "Run pip install 'radioplat[quantize]', or set quantize.backend: native."
        message = f"backend {backend} needs {package}, which cannot be imported here ({reason})"
        raise SpecError(message, where="quantize.backend", hint=hint) from None
