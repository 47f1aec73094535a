"""Compile parts of a training module with torch.compile, so that names, random numbers and tolerances stay the same."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any, TypeVar

import torch

Function = TypeVar("Function", bound=Callable[..., Any])

GRAPHS = 32  # of one function; image sizes, and whether views are shifted or leave the image, make different ones
_KNOWN = inspect.signature(torch.compile).parameters
# torch 2.14 counts the graphs of each compiled function apart. Before, all teachers' terms share a limit of 8.
_APART = {"isolate_recompiles": True, "recompile_limit": GRAPHS} if "isolate_recompiles" in _KNOWN else {}


def compile_options(backend: str) -> dict[str, Any]:
    """Return arguments of ``torch.compile`` with which random numbers are those of the uncompiled code."""
    return {"backend": backend, "options": {"fallback_random": True} if backend == "inductor" else None}


def compiled(function: Function, backend: str) -> Function:
    """Return ``function`` as a compiled one: with a graph for each combination of shapes, and of inputs that are None.

    Inputs that need more than :data:`GRAPHS` graphs run uncompiled.
    """
    return torch.compile(function, dynamic=False, **compile_options(backend), **_APART)
