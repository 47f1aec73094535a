"""Imports of optional packages, with a message that says what to install."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from radioplat.errors import SpecError


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
