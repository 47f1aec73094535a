"""What the tasks that make a student smaller leave: a checkpoint folder with a report, and the plan it came from."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from radioplat.errors import SpecError
from radioplat.models.vision_model import VisionModel, save_model
from radioplat.tracking.results import write_atomic

PLAN = "plan.json"


def write_model(student: VisionModel, path: Path, report: str, facts: Mapping[str, Any]) -> None:
    """Save ``student`` as ``path``, aside and then renamed: what bears the name is whole.

    Args:
        report: name of the JSON file beside the weights, with ``facts`` in it.
    """
    aside = path.with_name(f".{path.name}.partial")
    shutil.rmtree(aside, ignore_errors=True)
    save_model(student, aside)
    (aside / report).write_text(json.dumps(facts, indent=1, default=str))
    shutil.rmtree(path, ignore_errors=True)
    os.rename(aside, path)


def keep_plan(folder: Path, plan: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Write down what ``folder`` is made by, or read it where an earlier start did.

    Args:
        plan: what JSON holds; ``checkpoint`` is the one that was found, and stays what the first start found.
        where: the spec's section.

    Raises:
        SpecError: the folder was begun by another plan.
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
            f"{folder} was begun with another {', '.join(names)}",
            where=where,
            hint=f"Undo the change, give {where}.results_dir another name, or remove the folder to begin anew.",
        )
    return before
