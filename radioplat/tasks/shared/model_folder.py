"""Results of the tasks that make a student smaller: a checkpoint folder with a report, and the plan that made it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from radioplat.common.hashing import file_hash
from radioplat.errors import SpecError
from radioplat.models.source import SOURCES, Source, sources_text
from radioplat.models.vision_model import VisionModel, save_model
from radioplat.models.weights.manifest import MANIFEST
from radioplat.tracking.results import write_atomic

PLAN = "plan.json"


def write_model(
    student: VisionModel, path: Path, report: str, facts: Mapping[str, Any], sources: Sequence[Source]
) -> None:
    """Save ``student`` in a temporary folder and rename it to ``path``, so that ``path`` is always complete.

    Args:
        report: name of the JSON file with ``facts`` in that folder.
        sources: the models that it was made of, for ``source.json``.
    """
    aside = path.with_name(f".{path.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    save_model(student, aside)
    (aside / report).write_text(json.dumps(facts, indent=1, default=str))
    (aside / SOURCES).write_text(sources_text(sources))
    sums = {file.name: file_hash(file) for file in sorted(aside.iterdir())}
    (aside / MANIFEST).write_text(json.dumps(sums, indent=1))
    shutil.rmtree(path, ignore_errors=True)
    os.rename(aside, path)


def keep_plan(folder: Path, plan: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Write ``plan`` to ``folder``; return the plan of the first start if there is one.

    Args:
        plan: values for JSON; a difference in ``checkpoint`` is ignored, because the first start's is used.
        where: the spec's section.

    Raises:
        SpecError: the first start had another plan.
    """
    path = folder / PLAN
    now: dict[str, Any] = json.loads(json.dumps(plan))
    if not path.exists():
        write_atomic(path, json.dumps(now, indent=1))
        return now
    before = json.loads(path.read_text(encoding="utf-8"))
    names = [name for name in now if name != "checkpoint" and before.get(name) != now[name]]
    if names:
        raise SpecError(
            f"{folder} was started with another {', '.join(names)}",
            where=where,
            hint=f"Undo the change, give {where}.results_dir another name, or remove the folder to start again.",
        )
    return before
