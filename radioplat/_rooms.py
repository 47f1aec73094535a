"""Let a package be called like the function it is named after.

``radioplat.distill`` is a package (the room) and, for users, the function ``radioplat.distill(spec)``.
Importing a submodule binds the package under that name, so a function placed there would vanish;
giving the package module a ``__call__`` keeps both meanings at any time.
"""

from __future__ import annotations

import importlib
import sys
import types


class _CallableRoom(types.ModuleType):
    def __call__(self, *args, **kwargs):
        module, attribute = self.__dict__["_entry"]
        return getattr(importlib.import_module(module), attribute)(*args, **kwargs)


def make_callable(room: str, module: str, attribute: str) -> None:
    """Make package ``room`` callable: a call runs ``module.attribute``, imported at that moment."""
    package = sys.modules[room]
    package.__class__ = _CallableRoom
    package.__dict__["_entry"] = (module, attribute)
