"""What benchmarks of detectors share: images, mAP, and a student on labels alone beside one with a teacher."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import radioplat
from benchmarks.composites import write_set
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.evaluate.evaluate import evaluate
from radioplat.tracking.results import write_atomic

HELD_OUT, SIDE = 150, 64
ALONE, DISTILLED, DECODER, BOUND = "labels alone", "distilled", "the decoder alone", "the bindings alone"


def measured(home: Path, seed: int, images: int, measure: Callable[[], dict[str, float]]) -> dict[str, float]:
    """What ``measure`` finds on composites below ``home``; what is there already is not measured again."""
    done = home / "figures.json"
    if done.exists():
        return json.loads(done.read_text())
    for name, count in (("train", images), ("val", HELD_OUT)):
        if not (home / name / "annotations.json").exists():
            write_set(home / name, count, name == "val", SIDE, seed)
    found = measure()
    write_atomic(done, json.dumps(found, indent=1))
    return found


def students(
    spec_of: Callable[[str], dict[str, Any]], teacher: dict[str, Any], bindings: list[dict[str, Any]]
) -> dict[str, float]:
    """mAP of the same student on boxes alone, distilled with its teacher's decoder, and with either part of that.

    Args:
        spec_of: the student's spec by the name of its results.
        teacher: ``distill.teacher``.
    """
    found = {ALONE: task_map("train", spec_of("alone"))}
    silent = [bound | {"weight": 0.0} for bound in bindings]
    for name, bound, decoder in ((DISTILLED, bindings, True), (DECODER, silent, True), (BOUND, bindings, False)):
        distill = {"teacher": teacher, "bindings": bound, "decoder_from_teacher": decoder}
        found[name] = task_map("distill", spec_of(name.replace(" ", "_")) | {"distill": distill})
    return found


def bindings_of(*named: tuple[str, str, float]) -> list[dict[str, Any]]:
    """``distill.bindings`` between modules of the same name: name, criterion, weight."""
    return [
        {"teacher_module_name": name, "student_module_name": name, "criterion": criterion, "weight": weight}
        for name, criterion, weight in named
    ]


def task_map(task: str, spec: dict[str, Any]) -> float:
    """:func:`map_of` what ``radioplat train`` or ``distill`` leaves."""
    return map_of(spec, getattr(radioplat, task)(spec, say=lambda line: None).checkpoint)


def map_of(spec: dict[str, Any], checkpoint: Path) -> float:
    """COCO's mAP of a detector on the held-out images of ``spec``, percent."""
    judged = evaluate(load_spec(spec, (f"evaluate.checkpoint={checkpoint}",)))
    return 100 * judged.result.kpi().get("mAP", 0.0)
