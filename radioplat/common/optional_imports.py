"""Toolkits that only some backends need: imported where they are used, and named where they are missing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from radioplat.errors import SpecError


@contextmanager
def needs(package: str, backend: str) -> Iterator[None]:
    """Imports inside that fail become a sentence that says what to install.

    Args:
        package: name on the package index.
        backend: value of ``quantize.backend`` that wants it.

    Raises:
        SpecError: an import failed.
    """
    try:
        yield
    except ImportError as error:
        said = str(error).splitlines()[0]
        hint = "Run pip install 'radioplat[quantize]', or take quantize.backend: native."
        message = f"backend {backend} needs {package}, which cannot be imported here ({said})"
        raise SpecError(message, where="quantize.backend", hint=hint) from None
