"""The GPUs an engine is built for, as compute capabilities (``SM86``)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import ModuleType

from radioplat.errors import EngineError
from radioplat.exporting.engines.interface import SECTION
from radioplat.spec.resolved.number_formats import DATA_TYPES, DataType

AUTO = ("SM86", "SM89", "SM120")
WHERE = f"{SECTION}.tensorrt.compute_capabilities"


def number(name: str) -> int:
    """86 for ``SM86``."""
    return int(name[2:])


def known_targets(trt: ModuleType) -> list[str]:
    """What a library with ``ComputeCapability`` builds for, oldest first."""
    names = [name for name in dir(trt.ComputeCapability) if re.fullmatch(r"SM\d+", name)]
    return sorted(names, key=number)


def choose_targets(known: Sequence[str], asked: Sequence[str], data_types: Sequence[str], builder: str) -> list[str]:
    """The GPUs to build for; ``auto`` among ``asked`` stands for those of :data:`AUTO` that have the data types.

    Args:
        known: what the library builds for.
        data_types: in which the file computes.
        builder: the library's name and version.

    Raises:
        EngineError: an unknown GPU, none at all, or one without arithmetic in one of the types.
    """
    hint = f"Valid: {', '.join(known)}, or auto."
    if not asked:
        raise EngineError("an engine needs at least one GPU to be built for", where=WHERE, hint=hint)
    chosen: list[str] = []
    for name in asked:
        if name.lower() == "auto":
            chosen += [gpu for gpu in AUTO if gpu in known and not lacks(gpu, data_types)]
        elif name.upper() not in known:
            raise EngineError(f"{builder} builds for no GPU named {name!r}", where=WHERE, hint=hint)
        elif lacking := lacks(name.upper(), data_types):
            raise EngineError(
                f"{name.upper()} has no {lacking.name.upper()} arithmetic: {needs(lacking)}",
                where=WHERE,
                hint=f"Leave {name.upper()} out, or take another {SECTION}.tensorrt.data_type.",
            )
        else:
            chosen.append(name.upper())
    if not chosen:
        raise EngineError(f"{builder} builds for none of {', '.join(AUTO)}", where=WHERE, hint=hint)
    return list(dict.fromkeys(chosen))


def lacks(gpu: str, data_types: Sequence[str]) -> DataType | None:
    """The first of ``data_types`` that ``gpu`` has no arithmetic in."""
    known = [DATA_TYPES[name] for name in data_types if name in DATA_TYPES]
    return next((row for row in known if number(gpu) < row.first_sm), None)


def needs(row: DataType) -> str:
    """Which GPUs compute in it, for messages."""
    return f"{row.name.upper()} needs SM{row.first_sm} or later"
