"""One declaration a loss: what a new one needs, and that no other file lists losses."""

from __future__ import annotations

import ast
import shutil
import subprocess
import sys
from pathlib import Path

import radioplat
from radioplat.spec.schema.distill import LossType

PACKAGE = Path(radioplat.__file__).parent
EXAMPLE = PACKAGE.parent / "specs" / "radio_two_teachers.yaml"
# The whole of a new loss beside its own file: in which file, before what, which line.
LINES = [
    ("spec/schema/distill.py", '    rkd_distance = "rkd_distance"\n', '    huber = "huber"\n'),
    (
        "spec/resolved/losses.py",
        "        LossDefinition(LossType.gram,",
        "        LossDefinition(LossType.huber, (Kind.summary,), Mode.summary, least_images=4),\n",
    ),
    ("losses/registry.py", "    LossType.gram: ", "    LossType.huber: _pointwise(huber),\n"),
    (
        "losses/registry.py",
        "from radioplat.losses.terms.phi_error",
        "from radioplat.losses.terms.huber import huber\n",
    ),
]
HUBER = """
def huber(student, teacher):
    return (student - teacher).abs().sum(-1)
"""
PROGRAM = """
import sys
import torch
from radioplat.losses.registry import criterion
from radioplat.spec.checks.tasks.training_run import check
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.teacher import resolve_teachers

def problems(*overrides):
    spec = load_spec(sys.argv[1], ["distill.teacher[1].loss_type=huber", *overrides])
    return spec, [(problem.message, problem.hint) for problem in check(spec, "distill")]

spec, none = problems()
assert none == [], none
_, few = problems("dataset.batch_size=2")
assert few == [("loss huber compares images of a micro-batch, which has 2", "Take at least 4.")], few
_, [(message, hint)] = problems("distill.teacher[1].mode=logits")
assert message == "loss huber does not compare class scores" and "huber" not in hint
[term] = resolve_teachers(spec)[1].terms
assert term.kind == "summary", term
values, _ = criterion(term, 3, spec.distill)(torch.ones(4, 3), torch.zeros(4, 3), torch.ones(4))
assert values.tolist() == [3.0] * 4, values
"""
# Losses that have options or a form of their own may be named where those are.
NAMES_A_LOSS = {"spec/resolved/losses.py", "losses/registry.py", "spec/checks/teaching/losses.py",
                "objectives/detector_bindings.py"}  # fmt: skip


def test_a_new_loss_needs_three_files_and_its_own(tmp_path):
    copy = shutil.copytree(PACKAGE, tmp_path / "radioplat", ignore=shutil.ignore_patterns("__pycache__"))
    (copy / "losses" / "terms" / "huber.py").write_text(HUBER)
    for name, before, line in LINES:
        text = (copy / name).read_text()
        assert text.count(before) == 1, name
        (copy / name).write_text(text.replace(before, line + before))
    program = [sys.executable, "-c", PROGRAM, str(EXAMPLE)]
    done = subprocess.run(program, cwd=tmp_path, env={"PYTHONPATH": str(tmp_path)}, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_no_other_file_names_a_loss():
    naming = set()
    for path in PACKAGE.rglob("*.py"):
        text = path.read_text()
        if "LossType" in text and any(
            isinstance(node, ast.Attribute) and isinstance(node.value, ast.Name) and node.value.id == "LossType"
            and node.attr in LossType.__members__
            for node in ast.walk(ast.parse(text))
        ):  # fmt: skip
            naming.add(path.relative_to(PACKAGE).as_posix())
    assert naming == NAMES_A_LOSS
