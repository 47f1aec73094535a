"""Enumerations of the spec that also accept import paths of the user's code."""

from __future__ import annotations

import re
from enum import Enum, EnumMeta
from typing import Any, Self

IMPORT_PATH = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*")


class _WithImportPaths(EnumMeta):
    """Lets omegaconf, which looks members up by name, find import paths; see :meth:`NameOrImportPath._missing_`."""

    def __getitem__(cls, name: Any) -> Any:
        return cls(name) if isinstance(name, str) and IMPORT_PATH.fullmatch(name) else super().__getitem__(name)


class NameOrImportPath(str, Enum, metaclass=_WithImportPaths):
    """An enumeration whose fields also accept ``package.module:name``."""

    @classmethod
    def _missing_(cls, value: object) -> Self | None:
        if not (isinstance(value, str) and IMPORT_PATH.fullmatch(value)):
            return None
        member = str.__new__(cls, value)
        member._name_ = member._value_ = value
        return member

    @property
    def is_own(self) -> bool:
        """True if it is the import path of a user's code."""
        return ":" in self.value

    @property
    def short_name(self) -> str:
        """The name without the module."""
        return str(self.value).rpartition(":")[2]
