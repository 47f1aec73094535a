"""``<engine>.json``, the record of an engine: its source, and whether it was built, executed and evaluated.

Three separate states: ``built`` is true once the file is written, whether it works or not; ``executed`` once it ran on
a machine, described by ``execution``; ``evaluated`` once its features were measured, with results in ``evaluation``.
:func:`state_of` is the text for tables.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from radioplat.common.atomic_files import written_aside
from radioplat.errors import EngineError
from radioplat.exporting.engines.interface import SECTION


def record_path(engine: str | Path) -> Path:
    """Return the path of an engine's record: ``student.engine.json`` for ``student.engine``."""
    engine = Path(engine)
    return engine.with_name(f"{engine.name}.json")


def write_engine(path: Path, data: Any, facts: dict[str, Any]) -> dict[str, Any]:
    """Write an engine and its record atomically; return the record.

    Args:
        data: an object with the buffer protocol.
        facts: content of the record without hash, size and the three states.

    Raises:
        EngineError: the folder cannot be written to.
    """
    view = memoryview(data)
    record = {
        **facts,
        "engine_sha256": hashlib.sha256(view).hexdigest(),
        "bytes": view.nbytes,
        "built": True,
        "executed": False,
        "execution": {"reason": "not tried"},
        "latency": None,
        "evaluated": False,
        "evaluation": None,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        record_path(path).unlink(missing_ok=True)  # never an old record for a new engine
        with written_aside(path) as aside:
            aside.write_bytes(view)
    except OSError as error:
        raise EngineError(f"cannot write {path}: {error.strerror}", where=f"{SECTION}.trt_engine") from error
    _write(path, record)
    return record


def read_record(engine: str | Path) -> dict[str, Any]:
    """Read the record of an engine, and check that it belongs to this file.

    Raises:
        EngineError: there is no engine or no record, the record cannot be read, or the engine is another file.
    """
    path, record_file = Path(engine), record_path(engine)
    if not path.is_file():
        raise EngineError("there is no such engine", where=str(path), hint="Run `radioplat gen_trt_engine` first.")
    if not record_file.is_file():
        hint = f"Copy {record_file.name} together with the engine; `radioplat gen_trt_engine` wrote both."
        raise EngineError("the record of the engine is missing", where=str(path), hint=hint)
    try:
        record = json.loads(record_file.read_text(encoding="utf-8"))
        expected = record["engine_sha256"]
    except (ValueError, KeyError, TypeError) as error:
        hint = "Run `radioplat gen_trt_engine` again."
        raise EngineError(f"this is not the record of an engine: {error}", where=str(record_file), hint=hint) from error
    with path.open("rb") as opened:
        digest = hashlib.file_digest(opened, "sha256").hexdigest()
    if digest != expected:
        raise EngineError(
            f"the engine is corrupt, or not the one of {record_file.name}: its SHA-256 differs",
            where=str(path),
            hint="Copy both files again, or run `radioplat gen_trt_engine` again.",
        )
    return record


def backend_of(engine: str | Path) -> str:
    """Return the backend that an engine's record names; empty where there is no engine, or no readable record."""
    try:
        record = json.loads(record_path(engine).read_text(encoding="utf-8"))
        return str(record["backend"]) if Path(engine).is_file() else ""
    except (OSError, ValueError, KeyError, TypeError):
        return ""


def state_of(record: Mapping[str, Any]) -> str:
    """Return an engine's state: ``written, never executed``, ``executed on cpu``, ``executed on cpu, evaluated``."""
    if not record["executed"]:
        return "written, never executed"
    execution = record["execution"]
    problem = f" ({execution['reason']})" if "reason" in execution else ""
    return f"executed on {execution['device']}{problem}" + (", evaluated" if record["evaluated"] else "")


def mark_executed(engine: str | Path, execution: Mapping[str, Any]) -> dict[str, Any]:
    """Record that an engine ran, with ``execution`` (device and errors); return the record."""
    return _update(engine, {"executed": True, "execution": dict(execution)})


def mark_latency(engine: str | Path, latency: Mapping[str, Any]) -> dict[str, Any]:
    """Record the latency of an engine and of its float twins; return the record."""
    return _update(engine, {"latency": dict(latency)})


def mark_not_executed(engine: str | Path, reason: str) -> dict[str, Any]:
    """Record the reason why an engine could not run on this machine; return the record."""
    return _update(engine, {"executed": False, "execution": {"reason": reason}})


def mark_evaluated(engine: str | Path, metrics: Mapping[str, Any], *, device: str | None = None) -> dict[str, Any]:
    """Record the metrics of an engine; return the record.

    Args:
        metrics: values by name, as JSON.
        device: the device that ran it; needed if the record does not have it as executed.

    Raises:
        EngineError: as :func:`read_record`, or the engine was never executed.
    """
    record = read_record(engine)
    changes: dict[str, Any] = {"evaluated": True, "evaluation": dict(metrics)}
    if not record["executed"]:
        if device is None:
            raise EngineError(
                "an engine that was not executed cannot have metrics",
                where=str(engine),
                hint="Run it first, and give the device.",
            )
        changes.update(executed=True, execution={"device": device, "by": "evaluate"})
    return _update(engine, changes, record)


def _update(engine: str | Path, changes: Mapping[str, Any], record: dict[str, Any] | None = None) -> dict[str, Any]:
    updated = {**(record or read_record(engine)), **changes}
    _write(Path(engine), updated)
    return updated


def _write(engine: Path, record: Mapping[str, Any]) -> None:
    try:
        with written_aside(record_path(engine)) as aside:
            aside.write_text(json.dumps(record, indent=2), encoding="utf-8")
    except OSError as error:
        raise EngineError(f"cannot write {record_path(engine)}: {error.strerror}") from error
