"""Which orders of stages can be, and what is judged together."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.compress import CompressConfig, Stage
from radioplat.spec.schema.root import Spec
from radioplat.tasks.compress.groups import compress_problems, groups_of, stage_names
from radioplat.tasks.compress.stages import STAGES

CHANGES_STUDENT = {Stage.distill, Stage.prune, Stage.low_rank, Stage.quantize, Stage.ptq, Stage.qat, Stage.retrain}
QUANTIZES = {Stage.quantize, Stage.ptq, Stage.qat}
RELAXES = {Stage.prune, Stage.low_rank} | QUANTIZES


def test_every_stage_has_a_definition():
    assert list(STAGES) == list(Stage)
    assert {stage for stage, definition in STAGES.items() if definition.changes_student} == CHANGES_STUDENT
    assert {stage for stage, definition in STAGES.items() if definition.milder} == RELAXES


def problems(*overrides: str) -> list[str]:
    """Return the problems of the order, as text."""
    spec = load_spec(None, ("dataset.val_dataset.images_dir=held_out", *overrides))
    return [str(problem) for problem in compress_problems(spec)]


@given(st.lists(st.sampled_from(list(Stage)), max_size=8))
def test_groups_hold_every_stage_once_in_order(stages):
    config = CompressConfig(stages=stages)
    groups = groups_of(config)
    assert [step.name for group in groups for step in group.steps] == stage_names(config)
    for group in groups:
        assert len(group.steps) == 1 or [s.stage for s in group.steps][1:] == [Stage.retrain]
        assert not group.gated or group.steps[-1].definition.changes_student


def test_what_takes_away_is_judged_after_its_retraining():
    stages = [Stage.prune, Stage.prune, Stage.retrain, Stage.retrain, Stage.export]
    names = [[step.name for step in group.steps] for group in groups_of(CompressConfig(stages=stages))]
    assert names == [["01_prune"], ["02_prune", "03_retrain"], ["04_retrain"], ["05_export"]]


@given(st.lists(st.sampled_from(list(Stage)), min_size=1, max_size=8))
def test_an_accepted_order_has_an_export_for_each_engine_and_one_beginning(stages):
    spec = Spec(compress=CompressConfig(stages=stages))  # made by hand: loading one takes too long for so many
    spec.dataset.val_dataset.images_dir = "held_out"
    problems = list(compress_problems(spec))
    engines = [i for i, stage in enumerate(stages) if stage is Stage.engine]
    fresh = all(
        Stage.export in (before := stages[:i])
        and not CHANGES_STUDENT & set(before[len(before) - before[::-1].index(Stage.export) :])
        for i in engines
    )
    late = [(a, b) for i, a in enumerate(stages) for b in stages[i + 1 :] if b in RELAXES]
    settled = all(a not in QUANTIZES and (a, b) != (Stage.low_rank, Stage.prune) for a, b in late)
    assert (not problems) == (fresh and settled and Stage.distill not in stages[1:])


@pytest.mark.parametrize(
    ("overrides", "line"),
    [
        ("", "compress.stages: no stage is named"),
        ("compress.stages=[engine]", r"compress.stages[0]: an engine is built from an ONNX file. Put export before"),
        ("compress.stages=[export,prune,engine]", "compress.stages[2]: prune comes after the export"),
        ("compress.stages=[prune,distill]", "compress.stages[1]: distill starts a new student"),
        ("compress.stages=[low_rank,prune]", "compress.stages[1]: layers that low_rank has decomposed"),
        ("compress.stages=[ptq,prune]", "compress.stages[1]: ptq has quantized the student. Put prune before it"),
        ("compress.stages=[prune] compress.changes.07_prune=[]", "compress.changes.07_prune: no stage has this name"),
        ("compress.stages=[prune] dataset.val_dataset.images_dir=null", "dataset.val_dataset: the stages need"),
    ],
)
def test_what_cannot_be_is_named_by_field(overrides, line):
    assert any(found.startswith(line) for found in problems(*overrides.split())), problems(*overrides.split())
