"""Imports whose failure is a message: of users' code, given in the spec, and of packages that are installed on request,
the extras of ``pyproject.toml``: ``pip install 'radioplat[NAME]'``."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from importlib.util import find_spec
from typing import Any

from radioplat.errors import Problem, SpecError

# The modules that decide whether an extra is installed. The extra `engine` has none here: see TENSORRT.
EXTRAS: dict[str, tuple[str, ...]] = {
    "onnx": ("onnx", "onnxscript", "onnxruntime"),
    "openvino": ("openvino",),
    "quantize": ("modelopt",),
    "tune": ("optuna",),
    "wandb": ("wandb",),
    "hf": ("transformers",),
    "detect": ("pycocotools",),
}
# Packages of the core that are imported only where they are used, so that an incomplete installation is noticed late.
CORE = ("deepspeed", "ray")
# The modules of TensorRT by the backend of engines, one of which is enough, and how to install one.
TENSORRT: dict[str, tuple[str, ...]] = {
    "tensorrt": ("tensorrt",),
    "tensorrt_rtx": ("tensorrt_rtx", "tensorrt_rtx_bindings"),
}
INSTALL_TENSORRT = {
    "tensorrt": "Install one: pip install tensorrt (NVIDIA's index), or use gen_trt_engine.backend=tensorrt_rtx.",
    "tensorrt_rtx": "Install one: pip install 'radioplat[engine]'.",
}


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


def missing_extra(extra: str, purpose: str, where: str, *, instead: str = "") -> Iterator[Problem]:
    """Yield a problem for the first package of ``extra`` that is not installed; nothing is imported.

    Args:
        purpose: what the package is needed for, the subject of the message.
        where: the spec field that asks for it.
        instead: a sentence on how to do without it.
    """
    for module in EXTRAS[extra]:
        if find_spec(module) is None:
            hint = f"{_install(extra)} {instead}".rstrip()
            yield Problem(f"{purpose} needs the package {module}, which is not installed", where, hint)
            return


def missing_core(module: str, purpose: str, where: str) -> Iterator[Problem]:
    """Yield a problem if ``module``, of :data:`CORE`, is not installed; nothing is imported.

    Args:
        purpose: what the package is needed for, the subject of the message.
        where: the spec field that asks for it.
    """
    if find_spec(module) is None:
        yield Problem(f"{purpose} needs the package {module}, which is not installed", where, _complete(module))


def missing_tensorrt(backend: str, where: str) -> Iterator[Problem]:
    """Yield a problem if no module of TensorRT for ``backend`` is installed; nothing is imported.

    Args:
        where: the spec field that asks for it.
    """
    modules = TENSORRT[backend]
    if all(find_spec(module) is None for module in modules):
        message = f"backend {backend} needs the package {modules[0]}, which is not installed"
        yield Problem(message, where, INSTALL_TENSORRT[backend])


def require_extra(extra: str, purpose: str, where: str) -> None:
    """Raise the problem of :func:`missing_extra`.

    Raises:
        SpecError: a package of the extra is not installed.
    """
    if problems := list(missing_extra(extra, purpose, where)):
        raise SpecError(*problems)


def missing_module(error: ModuleNotFoundError) -> Problem | None:
    """Return the problem of an import that failed for want of an extra, or of a package of :data:`CORE`; else None."""
    module = (error.name or "").partition(".")[0]
    if module in CORE:
        return Problem(f"this needs the package {module}, which is not installed", hint=_complete(module))
    for extra, modules in EXTRAS.items():
        if module in modules:
            return Problem(f"this needs the package {module}, which is not installed", hint=_install(extra))
    return None


def _install(extra: str) -> str:
    return f"Run pip install 'radioplat[{extra}]'."


def _complete(module: str) -> str:
    """Return the advice to install a package of the core, in a version that radioplat accepts."""
    from importlib.metadata import PackageNotFoundError, requires

    requirement = module
    with suppress(PackageNotFoundError):  # radioplat itself is not installed, only on the path
        requirement = next((line for line in requires("radioplat") or () if line.startswith(module)), module)
    return f"The installation is incomplete: run pip install '{requirement}'."
