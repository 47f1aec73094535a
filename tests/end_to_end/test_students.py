"""Several students learn from one pass of the teachers: each is what it would be alone."""

from __future__ import annotations

import contextlib
import json
import math
import shutil
from pathlib import Path

import pytest
import torch

import radioplat
from radioplat.errors import DataError, EngineError, SpecError
from radioplat.launch.driver import StudentsFailed
from radioplat.objectives.distill import DistillObjective
from radioplat.spec.loading.load import load_spec
from radioplat.spec.loading.students import student_specs
from radioplat.spec.schema.root import Spec
from radioplat.teachers.serving.client import InlineTeacher
from radioplat.tracking.results import TaskFolder
from radioplat.tracking.status import read_status
from radioplat.tracking.teacher_cost import TeacherCosts
from radioplat.training.accounting.prove import prove_results, prove_run
from radioplat.training.checkpoints.checkpoint import newest, verified_state
from radioplat.training.targets import first_pass

STUDENTS = [
    {"name": "base"},
    {
        "name": "small",
        "model": {"backbone": {"kwargs": {"embed_dim": 24, "num_heads": 2}}},
        "train": {"optim": {"lr": 5e-4}, "enable_ema": True},
    },
    {
        "name": "cnn",
        "img_size": 96,
        "model": {"backbone": {"type": "resnet10t", "kwargs": {}}},
        "distill": {"loss_lambda": 0.5},
    },
]
NAMES = [student["name"] for student in STUDENTS]
EVERY_SECOND = ("train.checkpoint_interval=2", "train.checkpoint_interval_unit=step", "train.keep_last=9")
FILES = ("student.safetensors", "heads.safetensors", "optimizer.safetensors", "ema.safetensors")


@pytest.fixture(scope="module")
def family_spec(make_spec):
    """family_spec(folder, students) -> a spec of these students."""
    return lambda folder, students=STUDENTS: make_spec(folder, {"distill": {"students": students}})


@pytest.fixture(scope="module")
def family(family_spec, distil, tmp_path_factory):
    """Three students, eight steps, a checkpoint every second step; ``asked`` has the requests to each teacher."""
    with asking() as asked:
        trail = distil(family_spec(tmp_path_factory.mktemp("family")), *EVERY_SECOND)
    trail.asked = asked
    return trail


@contextlib.contextmanager
def asking():
    """Yield the number of requests to each teacher in the block."""
    asked: dict[str, int] = {}
    submit = InlineTeacher.submit

    def counting(self, shared, micro_batch):
        asked[self.name] = asked.get(self.name, 0) + 1
        return submit(self, shared, micro_batch)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(InlineTeacher, "submit", counting)
        yield asked


def alone(spec: dict, folder: Path, name: str) -> Spec:
    """The spec of one student alone, with results of its own."""
    own = student_specs(load_spec(spec))[name]
    own.results_dir, own.dataset.index_dir = str(folder), None
    return own


def differing(ours: Path, theirs: Path) -> list[str]:
    """Files of two checkpoints that are not the same, byte for byte."""
    there = [name for name in FILES if (ours / name).exists() or (theirs / name).exists()]
    return [name for name in there if (ours / name).read_bytes() != (theirs / name).read_bytes()]


def broken_off(family, into: Path, steps: dict[str, int]) -> list[str]:
    """Overrides that go on from a copy in which each student's last checkpoint is that of these steps."""
    shutil.copytree(family.folder.parent, into, symlinks=True)
    for name, kept in steps.items():
        folder = TaskFolder(into / "students" / name, "distill")
        left = {verified_state(path).global_step: path for path in folder.checkpoints()}
        for step, path in left.items():
            if step > kept:
                shutil.rmtree(path)
        folder.point_latest(left[kept].name)
    return [f"results_dir={into}", *EVERY_SECOND]


@pytest.mark.parametrize("name", ["small", *(pytest.param(name, marks=pytest.mark.proof) for name in ("base", "cnn"))])
def test_a_student_is_what_it_would_be_alone(family, family_spec, distil, tmp_path, name):
    lone = distil(alone(family_spec(tmp_path), tmp_path, name), *EVERY_SECOND)
    assert differing(family.result.students[name].checkpoint, lone.result.checkpoint) == []
    assert [p.name for p in sorted(lone.folder.glob("model_epoch_*"))] == [
        p.name for p in sorted(family.result.students[name].folder.glob("model_epoch_*"))
    ]


def test_teachers_are_asked_once_and_students_share_the_bill(family):
    assert family.asked == {"lite0": 24, "vit": 24}  # eight steps of three micro-batches
    bills = [TeacherCosts.read(family.result.students[name].folder) for name in NAMES]
    seconds = [bill.teachers["lite0"].seconds for bill in bills]
    assert max(seconds) < 1.01 * min(seconds) and all(bill.teachers["lite0"].images == 48 for bill in bills)
    assert TeacherCosts.total(bills).teachers["lite0"].seconds == pytest.approx(sum(seconds))


def test_teachers_are_asked_once_in_a_first_pass_that_is_too_large_to_keep(family_spec, distil, tmp_path, monkeypatch):
    monkeypatch.setattr(first_pass, "KEPT_BYTES", 0)
    spec = family_spec(tmp_path, STUDENTS[:2])
    spec["distill"]["target_norm"] = {"type": "standardize", "fit_batches": 1}
    with asking() as asked:
        trail = distil(spec, "train.max_steps=2")
    assert asked == {"lite0": 9, "vit": 9}  # one step and two, of three micro-batches
    bills = [TeacherCosts.read(trail.result.students[name].folder) for name in NAMES[:2]]
    assert [bill.teachers["lite0"].images for bill in bills] == [18, 18]


def test_each_folder_is_that_of_a_run(family):
    for name in NAMES:
        folder = family.result.students[name].folder
        assert folder.parent == family.folder.parent / "students" / name
        spec = load_spec(folder / "experiment.yaml")
        assert spec.distill.students == [] and spec.results_dir == str(folder.parent)
        proof = prove_run(folder, spec.dataset)
        assert proof.holds and proof.expected == 48, proof
        lines = list(read_status(folder / "status.json"))
        assert lines[-1]["status"] == "SUCCESS" and [n["step"] for n in lines if "loss" in n.get("kpi", {})] == [
            *range(1, 9)
        ]
        student = radioplat.load_student(folder / "model_latest")
        assert student(torch.zeros(1, 3, 64, 64)).summary.shape[0] == 1


@pytest.mark.proof
def test_students_at_different_steps_end_as_if_nothing_had_happened(family, family_spec, distil, tmp_path):
    into = tmp_path / "again"
    then = distil(family_spec(into), *broken_off(family, into, {"base": 4, "small": 2, "cnn": 6}))
    assert [then.result.students[name].resumed_from for name in NAMES] == [4, 2, 6]
    for name in NAMES:
        assert differing(family.result.students[name].checkpoint, then.result.students[name].checkpoint) == []
        assert prove_run(then.result.students[name].folder, load_spec(family_spec(into)).dataset).holds


def test_a_student_is_added_at_a_resume(family, family_spec, distil, tmp_path):
    two = broken_off(family, tmp_path / "two", {"base": 4, "small": 4})
    shutil.rmtree(tmp_path / "two" / "students" / "cnn")
    then = distil(family_spec(tmp_path / "two"), *two)
    assert [then.result.students[name].resumed_from for name in NAMES] == [4, 4, 0]
    for name in NAMES:
        assert differing(family.result.students[name].checkpoint, then.result.students[name].checkpoint) == []


@pytest.fixture
def diverging(monkeypatch):
    """diverging(step): from then on the losses of the CNN are NaN."""
    forward = DistillObjective.forward

    def begin(step: float) -> None:
        def poisoned(self, batch):
            losses = forward(self, batch)
            bad = self.step >= step and self.student.architecture.type == "resnet10t"
            return {name: value * float("nan") for name, value in losses.items()} if bad else losses

        monkeypatch.setattr(DistillObjective, "forward", poisoned)

    return begin


def test_one_diverges_alone_and_is_tried_again(family, family_spec, distil, tmp_path, diverging):
    diverging(5)
    overrides = (*EVERY_SECOND, "train.non_finite=fail")
    with pytest.raises(StudentsFailed, match="1 of 3 students diverged; the other 2 went on: cnn at step 5") as raised:
        distil(family_spec(tmp_path), *overrides)
    assert {name: result.global_step for name, result in raised.value.whole.items()} == {"base": 8, "small": 8}
    folders = {name: tmp_path / "students" / name / "distill" for name in NAMES}
    assert [newest(folders[name])[1].global_step for name in NAMES] == [8, 8, 4]
    assert json.loads((folders["cnn"] / "ended.json").read_text())["step"] == 5
    ends = {name: list(read_status(folder / "status.json"))[-1] for name, folder in folders.items()}
    assert [ends[name]["status"] for name in NAMES] == ["SUCCESS", "SUCCESS", "FAILURE"]
    assert "each used exactly once" in ends["base"]["message"]
    with pytest.raises(StudentsFailed, match="a student diverged: cnn at step 5"):
        distil(family_spec(tmp_path), *overrides)
    diverging(math.inf)
    then = distil(family_spec(tmp_path), *overrides)
    assert [then.result.students[name].resumed_from for name in NAMES] == [8, 8, 4]
    for name in NAMES:
        assert differing(family.result.students[name].checkpoint, then.result.students[name].checkpoint) == []


@pytest.mark.parametrize("base", [6, 2])
def test_one_diverges_while_another_is_at_another_step(family, family_spec, distil, tmp_path, diverging, base):
    again = broken_off(family, tmp_path / "again", {"base": base, "small": 8, "cnn": 2})
    diverging(3)  # of the steps 4 and 5 then nobody lacks one, if base has them
    with pytest.raises(StudentsFailed, match="1 of 2 students diverged; the other 1 went on: cnn at step 3"):
        distil(family_spec(tmp_path / "again"), *again, "train.non_finite=fail")
    for name in NAMES[:2]:
        own = tmp_path / "again" / "students" / name / "distill"
        assert differing(family.result.students[name].checkpoint, newest(own)[0]) == []
        assert prove_run(own, load_spec(family_spec(tmp_path / "again")).dataset).holds


@pytest.mark.parametrize(
    ("students", "where"),
    [
        ([{"name": "a"}, {"name": "a"}], "distill.students[0].name"),
        ([{"name": "a/b"}], "distill.students[0].name"),
        ([{"name": "a", "train": {"num_epochs": 3}}], "distill.students[0].train.num_epochs"),
        ([{"name": "a", "distill": {"teacher": []}}], "distill.students[0].distill.teacher"),
        ([{"name": "a", "model": {"backbone": {"typ": "x"}}}], "distill.students[0].model.backbone.typ"),
        ([{"name": "a"}, {"name": "b", "train": {"optim": {"lr": -1}}}], "distill.students[1].train.optim.lr"),
        ([{"name": "a"}, {"name": "b", "model": {"backbone": {"type": "nosuch"}}}], "distill.students[1].model"),
    ],
)
def test_bad_fields_are_named(family_spec, distil, tmp_path, students, where):
    with pytest.raises(SpecError) as raised:
        distil(family_spec(tmp_path, students))
    assert any(problem.where.startswith(where) for problem in raised.value.problems), str(raised.value)


@pytest.mark.parametrize(
    ("students", "mode", "message"),
    [([], "ray", "for several students"), (STUDENTS[:1], "ray", "for several"), (STUDENTS, "auto", "on a Ray cluster")],
)
def test_workers_of_their_own_need_several_students_and_a_cluster(family_spec, tmp_path, students, mode, message):
    spec = family_spec(tmp_path, students) | {"cluster": {"mode": mode}}
    spec["distill"]["placement"] = "spread"
    problems = radioplat.plan(spec).problems
    assert [p.where for p in problems if message in p.message] == ["distill.placement"], problems


def test_plan_lists_all_students_and_what_they_do_not_have_in_common(family_spec, tmp_path):
    planned = radioplat.plan(family_spec(tmp_path))
    assert planned.problems == [] and [line.name for line in planned.models] == [*NAMES, "lite0", "vit"]
    wide = [
        *STUDENTS[:1],
        {"name": "wide", "train": {"num_gpus": 2}},
        {"name": "x", "model": {"backbone": {"typ": "y"}}},
    ]
    assert [p.where for p in radioplat.plan(family_spec(tmp_path, wide)).problems] == [
        "distill.students[1].train.num_gpus"
    ]
    faulty = radioplat.plan(family_spec(tmp_path, [*STUDENTS[:1], {"name": "x", "model": {"backbone": {"typ": "y"}}}]))
    assert [problem.where for problem in faulty.problems] == ["distill.students[1].model.backbone.typ"]


def test_partitions_are_drawn_for_all_students_alike(family_spec, tmp_path):
    spec = family_spec(tmp_path, [{"name": "a"}, {"name": "b", "train": {"seed": 3}}])
    assert radioplat.plan(spec).problems == []
    spec["distill"]["partitions"] = [{"teachers": ["lite0"], "share": 1 / 3}, {"teachers": ["vit"], "share": 2 / 3}]
    assert [p.where for p in radioplat.plan(spec).problems] == ["distill.students[1].train.seed"]


def test_other_tasks_want_one_student(family, family_spec, tmp_path):
    spec = family_spec(family.folder.parent)
    with pytest.raises(EngineError, match="3 students.*base, small, cnn"):
        radioplat.export(spec)
    own = family.result.students["cnn"].folder / "experiment.yaml"
    exported = radioplat.export(own, [f"export.onnx_file={tmp_path / 'cnn.onnx'}"])
    assert Path(exported.path).exists()


def test_commands_on_a_run_want_one_student(family, tmp_path):
    results = family.folder.parent
    with pytest.raises(DataError, match=r"3 students: base, cnn, small.*students/base"):
        radioplat.replay(results, 5)
    again = radioplat.replay(results / "students" / "small", 5)
    assert again.difference == 0.0 and again.is_same
    proofs = prove_results(results)
    assert {folder.parent.name for folder in proofs} == set(NAMES) and all(proof.holds for proof in proofs.values())
