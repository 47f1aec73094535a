"""Mask secrets in the outputs of a run: status lines, W&B configs, reports."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping
from typing import Any

MASK = "(secret)"  # a plain YAML scalar, so that a masked spec still parses
_SECRET_ENDINGS = ("_KEY", "_TOKEN", "_SECRET", "_PASSWORD")
# Shorter values ("1", "true", "auto") are switches, not secrets, and would mask ordinary words.
_SHORTEST_SECRET = 8
# A YAML field named like a secret, with its value, which may continue on indented lines.
_YAML_SECRET = re.compile(
    rf"^(?P<indent> *)(?P<name>\w+(?:{'|'.join(_SECRET_ENDINGS)})): (?!null$|''$).+(?:\n(?P=indent) +.*)*", re.I | re.M
)


def redact(text: str, environ: Mapping[str, str] | None = None) -> str:
    """Mask each value of an environment variable named ``*_KEY``, ``*_TOKEN``, ``*_SECRET`` or ``*_PASSWORD``.

    Args:
        text: the text to be written.
        environ: environment variables; default: ``os.environ``.

    Returns:
        ``text`` with ``(secret)`` for every such value of at least 8 characters.
    """
    return _without(text, _secrets(environ))


def redact_yaml(text: str, environ: Mapping[str, str] | None = None) -> str:
    """Mask YAML text like :func:`redact`, and every field named like a secret (for example ``encryption_key``)."""
    return redact(_YAML_SECRET.sub(rf"\g<indent>\g<name>: {MASK}", text), environ)


def redact_tree(value: Any, environ: Mapping[str, str] | None = None) -> Any:
    """Return a copy of nested dicts and lists with strings redacted and fields named like secrets masked."""
    return _masked(value, _secrets(environ))


def _secrets(environ: Mapping[str, str] | None) -> list[str]:
    """Return the values to mask, the longest first: a secret may contain a shorter one."""
    environ = os.environ if environ is None else environ
    named = {environ[name] for name in environ if name.upper().endswith(_SECRET_ENDINGS)}
    return sorted((value for value in named if len(value) >= _SHORTEST_SECRET), key=len, reverse=True)


def _masked(value: Any, secrets: list[str]) -> Any:
    if isinstance(value, (int, float)):  # nearly all values of a status line
        return value
    if isinstance(value, Mapping):
        return {
            key: MASK
            if isinstance(inner, str) and inner and str(key).upper().endswith(_SECRET_ENDINGS)
            else _masked(inner, secrets)
            for key, inner in value.items()
        }
    if isinstance(value, (list, tuple)):
        return [_masked(inner, secrets) for inner in value]
    return _without(value, secrets) if isinstance(value, str) else value


def _without(text: str, secrets: list[str]) -> str:
    for secret in secrets:
        text = text.replace(secret, MASK)
    return text
