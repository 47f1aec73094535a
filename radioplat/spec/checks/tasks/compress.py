"""Contradictions in section ``compress``: orders of stages that make no sense."""

from __future__ import annotations

from collections.abc import Iterator

from radioplat.errors import Problem
from radioplat.spec.schema.compress import CompressConfig, Stage
from radioplat.spec.schema.root import Spec

QUANTIZES = frozenset({Stage.quantize, Stage.ptq, Stage.qat})
RELAXES = QUANTIZES | {Stage.prune, Stage.low_rank}  # stages that have a milder setting
CHANGES_STUDENT = RELAXES | {Stage.distill, Stage.retrain}


def compress_problems(spec: Spec) -> Iterator[Problem]:
    """What the task ``compress`` cannot do."""
    asked = spec.compress
    if not asked.stages:
        known = ", ".join(stage.value for stage in Stage)
        yield Problem("no stage is named", "compress.stages", f"Stages: {known}.")
    for i in range(len(asked.stages)):
        if why := _out_of_place(asked.stages, i):
            yield Problem(why[0], f"compress.stages[{i}]", why[1])
    names = [*(stage.value for stage in Stage), *stage_names(asked)]
    for name in asked.changes:
        if name not in names:
            yield Problem("no stage has this name", f"compress.changes.{name}", f"Stages: {', '.join(names)}.")
    val = spec.dataset.val_dataset
    if CHANGES_STUDENT & set(asked.stages) and not (val.tar_data_sources or val.images_dir):
        hint = "Each student is judged on it; the test split is never used for that."
        yield Problem("the stages need held-out images", "dataset.val_dataset", hint)


def stage_names(config: CompressConfig) -> list[str]:
    """``01_prune``, ``02_retrain``, ...: the stages' folders."""
    return [f"{i:02d}_{stage.value}" for i, stage in enumerate(config.stages, 1)]


def _out_of_place(stages: list[Stage], place: int) -> tuple[str, str] | None:
    """Why the stage at ``place`` cannot stand there, and what to do; None where it can."""
    stage, before = stages[place], stages[:place]
    if stage is Stage.distill and place:
        return "distill begins a student and can only be the first stage", "To train on, take retrain."
    if stage in RELAXES and (done := [other for other in before if other in QUANTIZES]):
        return f"{done[0].value} has quantized the student", f"Put {stage.value} before it, or leave it out."
    if stage is Stage.prune and Stage.low_rank in before:
        return "two narrow layers in place of one cannot be pruned", "Put prune before low_rank."
    if stage is Stage.engine:
        if Stage.export not in before:
            return "an engine is built from an ONNX file", "Put export before it."
        last = len(before) - 1 - before[::-1].index(Stage.export)
        if changed := CHANGES_STUDENT & set(before[last:]):
            name = sorted(stage.value for stage in changed)[0]
            return f"the export before it is older than {name}", "Put export after it."
    return None
