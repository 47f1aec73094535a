"""GPUs that an engine is built for, as compute capabilities (``SM86``)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from types import ModuleType

from radioplat.errors import EngineError
from radioplat.exporting.engines.interface import SECTION
from radioplat.spec.resolved.number_formats import DATA_TYPES, DataType

AUTO = ("SM86", "SM89", "SM120")
ORIN = "SM87"
WHERE = f"{SECTION}.tensorrt.compute_capabilities"


def number(name: str) -> int:
    """Return 86 for ``SM86``."""
    return int(name[2:])


def known_targets(trt: ModuleType) -> list[str]:
    """Return the GPUs that a library with ``ComputeCapability`` supports, oldest first."""
    return sorted((name for name in dir(trt.ComputeCapability) if re.fullmatch(r"SM\d+", name)), key=number)


def choose_targets(
    known: Sequence[str], requested: Sequence[str], data_types: Sequence[str], builder: str
) -> list[str]:
    """Return the GPUs to build for; ``auto`` means those of :data:`AUTO` that support the data types.

    Args:
        known: GPUs that the library supports.
        data_types: data types of the file.
        builder: the library's name and version.

    Raises:
        EngineError: an unknown GPU, no GPU, or one that does not support one of the types.
    """
    hint = f"Valid: {', '.join(known)}, or auto."
    if not requested:
        raise EngineError("an engine needs at least one GPU", where=WHERE, hint=hint)
    chosen: list[str] = []
    for name in requested:
        if name.lower() == "auto":
            chosen += [gpu for gpu in AUTO if gpu in known and not unsupported_type(gpu, data_types)]
        elif name.upper() not in known:
            more = (
                " For a Jetson Orin export a bundle, build there: docs/how_to/jetson.md."
                if name.upper() == ORIN
                else ""
            )
            raise EngineError(f"{builder} does not support a GPU {name!r}", where=WHERE, hint=hint + more)
        elif unsupported := unsupported_type(name.upper(), data_types):
            raise EngineError(
                f"{name.upper()} has no {unsupported.name.upper()} arithmetic: {requirement(unsupported)}",
                where=WHERE,
                hint=f"Leave {name.upper()} out, or use another {SECTION}.tensorrt.data_type.",
            )
        else:
            chosen.append(name.upper())
    if not chosen:
        raise EngineError(f"{builder} supports none of {', '.join(AUTO)}", where=WHERE, hint=hint)
    return list(dict.fromkeys(chosen))


def unsupported_type(gpu: str, data_types: Sequence[str]) -> DataType | None:
    """Return the first of ``data_types`` that ``gpu`` does not support."""
    known = [DATA_TYPES[name] for name in data_types if name in DATA_TYPES]
    return next((row for row in known if number(gpu) < row.first_sm), None)


def requirement(row: DataType) -> str:
    """Return a text about the GPUs that support a data type."""
    return f"{row.name.upper()} needs SM{row.first_sm} or later"
