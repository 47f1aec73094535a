"""What a gate makes of a metric, and what a student is counted to take."""

from __future__ import annotations

import pytest

from radioplat.models.student.checkpoint import HEADS_FILE, STUDENT_FILE, save_one_file, save_student
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.compress.chain_record import Entry
from radioplat.tasks.compress.compress import START, _Chain
from radioplat.tasks.compress.outcome import student_outcome


@pytest.mark.parametrize(
    ("start", "after", "kept", "said"),
    [
        (0.5, 0.4, 0.8, None),
        (0.5, -0.1, -0.2, None),  # the gate fails
        (-0.1, -0.2, None, "no share of the starting student's fidelity can be computed: it is -0.1"),
        (0.0, 0.3, None, "no share of the starting student's fidelity can be computed: it is 0"),
        (0.5, None, None, "fidelity was not measured after 01_ptq; measured: none"),
    ],
)
def test_what_is_worse_does_not_pass(start, after, kept, said, tmp_path):
    chain = _Chain(load_spec(None, ["compress.stages=[ptq]"]), tmp_path, print)
    entries = []
    for name, value in ((START, start), ("01_ptq", after)):
        metrics = {} if value is None else {"fidelity": value}
        entries.append(Entry(name, name, "", metrics=metrics, metrics_hash=chain._measured_on))  # measured already
        chain._judge(entries[-1], tmp_path)
    assert entries[1].kept == (kept if kept is None else pytest.approx(kept))
    if said:
        assert said in str(chain._cannot_judge(entries[1]))


def test_a_student_in_one_file_takes_what_it_takes_in_two(tmp_path):
    kwargs = {"depth": 1, "embed_dim": 32, "num_heads": 2}
    student = Student(StudentArchitecture(type="radio_vit_tiny_patch16", kwargs=kwargs, img_size=32))
    save_student(student, student.state_dict(), tmp_path)
    save_one_file(student, tmp_path / "one.safetensors", {})
    folder, file = student_outcome(tmp_path), student_outcome(tmp_path / "one.safetensors")
    assert folder.bytes == sum((tmp_path / name).stat().st_size for name in (STUDENT_FILE, HEADS_FILE))
    assert file.bytes == (tmp_path / "one.safetensors").stat().st_size > 4 * file.params
    assert (file.params, file.macs) == (folder.params, folder.macs)
