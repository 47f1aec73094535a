"""``<engine>.json`` beside an engine: what it was built from, and whether it was built, executed and evaluated.

Three words that never stand for one another: ``built`` is true once the file is written, and says nothing of whether it
works; ``executed`` once it computed something on a machine, which ``execution`` names; ``evaluated`` once its features
were judged: ``evaluation``. :func:`state_of` is what tables show.
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
    """``student.engine.json`` for ``student.engine``."""
    engine = Path(engine)
    return engine.with_name(f"{engine.name}.json")


def write_engine(path: Path, data: Any, facts: dict[str, Any]) -> dict[str, Any]:
    """Write an engine and its record under their names once each is whole; returns the record.

    Args:
        data: an object with the buffer protocol.
        facts: all but what this function knows: hash, size and the three words.

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
        "execution": {"reason": "nobody has tried"},
        "evaluated": False,
        "evaluation": None,
    }
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        record_path(path).unlink(missing_ok=True)  # never an old record beside a new engine
        with written_aside(path) as aside:
            aside.write_bytes(view)
    except OSError as error:
        raise EngineError(f"cannot write {path}: {error.strerror}", where=f"{SECTION}.trt_engine") from error
    _write(path, record)
    return record


def read_record(engine: str | Path) -> dict[str, Any]:
    """The record of an engine, once the engine is known to be the file that it is about.

    Raises:
        EngineError: there is no engine or no record, the record cannot be read, or the engine is not what was built.
    """
    path, about = Path(engine), record_path(engine)
    if not path.is_file():
        raise EngineError("there is no such engine", where=str(path), hint="Run `radioplat gen_trt_engine` first.")
    if not about.is_file():
        hint = f"Copy it along with the engine; `radioplat gen_trt_engine` wrote both. It is called {about.name}."
        raise EngineError("the record of the engine is not beside it", where=str(path), hint=hint)
    try:
        record = json.loads(about.read_text(encoding="utf-8"))
        expected = record["engine_sha256"]
    except (ValueError, KeyError, TypeError) as error:
        hint = "Run `radioplat gen_trt_engine` again."
        raise EngineError(f"this is no record of an engine: {error}", where=str(about), hint=hint) from error
    with path.open("rb") as opened:
        found = hashlib.file_digest(opened, "sha256").hexdigest()
    if found != expected:
        raise EngineError(
            f"the engine is corrupt, or another file than {about.name} is about: its SHA-256 differs",
            where=str(path),
            hint="Copy both files again, or run `radioplat gen_trt_engine` again.",
        )
    return record


def state_of(record: Mapping[str, Any]) -> str:
    """What was seen of an engine: ``written, never executed``, ``executed on cpu``, ``executed on cpu, evaluated``."""
    if not record["executed"]:
        return "written, never executed"
    execution = record["execution"]
    trouble = f" ({execution['reason']})" if "reason" in execution else ""
    return f"executed on {execution['device']}{trouble}" + (", evaluated" if record["evaluated"] else "")


def mark_executed(engine: str | Path, execution: Mapping[str, Any]) -> dict[str, Any]:
    """Write down that an engine computed something; ``execution`` says where and how well. Returns the record."""
    return _update(engine, {"executed": True, "execution": dict(execution)})


def mark_not_executed(engine: str | Path, reason: str) -> dict[str, Any]:
    """Write down why an engine could not be run here. Returns the record."""
    return _update(engine, {"executed": False, "execution": {"reason": reason}})


def mark_evaluated(engine: str | Path, metrics: Mapping[str, Any], *, device: str | None = None) -> dict[str, Any]:
    """Write down the metrics of an engine that was run. Returns the record.

    Args:
        metrics: names and figures, JSON.
        device: what it ran on; needed where the record does not say that it was executed.

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
                hint="Run it first, and say on what device.",
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
