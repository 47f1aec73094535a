"""What of the spec the second half of ``quantize.mode: qat`` follows, and what the first half is made of."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from radioplat.design.stages import total_steps
from radioplat.errors import SpecError
from radioplat.models.student.checkpoint import HEADS_FILE, save_student
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.models.weights.model_format import EMA_FILE
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.quantize.qat import INPUTS, _earlier_report, _inputs, training_spec
from radioplat.tasks.quantize.report import REPORT

PER_EPOCH = 50


@pytest.mark.parametrize(
    ("train", "own", "steps"),
    [
        ("num_epochs=2", {"max_steps": 300}, 300),  # longer than the epochs of the training before
        ("max_steps=70", {"num_epochs": 4}, 200),  # longer than its steps
        ("max_steps=70", {"num_epochs": 4, "max_steps": 150}, 150),
        ("max_steps=70", {"max_steps": 20}, 20),
        ("max_steps=70", {}, 70),
        ("num_epochs=3", {}, 150),
    ],
)
def test_its_length_is_what_is_said_of_it(train, own, steps):
    said = [f"quantize.qat.{name}={value}" for name, value in own.items()]
    spec, _ = training_spec(load_spec(None, [f"train.{train}", *said]), Path("start"), Path("qat"))
    assert total_steps(spec, PER_EPOCH) == steps


def test_its_rate_is_that_of_projectors_too():
    asked = ["train.optim.lr=0.004", "train.optim.projector_lr=0.02"]
    for own, rates in (([], (0.004, 0.02)), (["quantize.qat.lr=0.001"], (0.001, 0.005))):
        optim = training_spec(load_spec(None, [*asked, *own]), Path("start"), Path("qat"))[0].train.optim
        assert (optim.lr, optim.projector_lr) == pytest.approx(rates)


@pytest.fixture(scope="module")
def checkpoint(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("student")
    kwargs = {"depth": 1, "embed_dim": 32, "num_heads": 2}
    student = Student(StudentArchitecture(type="radio_vit_tiny_patch16", kwargs=kwargs, img_size=32))
    save_student(student, student.state_dict(), folder)
    return folder


@pytest.fixture
def done(checkpoint, tmp_path):
    """The spec of a first half that is done, and where it lies."""
    split = "dataset.quant_calibration_dataset.images_dir=some"
    spec = load_spec(None, ["quantize.mode=qat", f"quantize.checkpoint={checkpoint}", split])
    report = {"path": "", "checkpoint": "", "layers": [], "skipped": {}, "images": 8, "cosine": {}}
    for name in checkpoint.iterdir():
        (tmp_path / name.name).write_bytes(name.read_bytes())
    (tmp_path / REPORT).write_text(json.dumps(report))
    (tmp_path / INPUTS).write_text(json.dumps(_inputs(spec)))
    return spec, tmp_path


@pytest.mark.parametrize(
    ("change", "where", "refused"),
    [
        ("dataset.quant_calibration_dataset.images_dir=other", "dataset.quant_calibration_dataset", True),
        ("dataset.quant_calibration_dataset.seed=43", "dataset.quant_calibration_dataset", True),
        ("dataset.quant_calibration_dataset.images_dir=null", "dataset.quant_calibration_dataset", True),
        ("dataset.batch_size=5", "", False),
        ("quantize.algorithm=mse", "quantize.algorithm", True),
    ],
)
def test_other_images_are_measured_anew(done, change, where, refused):
    spec, start = done
    assert _earlier_report(start, _inputs(spec), training_began=True).images == 8
    after = _inputs(load_spec(spec, [change]))
    assert _earlier_report(start, after, training_began=False) is None
    if refused:
        with pytest.raises(SpecError, match=f"^{where}: it has changed since the training"):
            _earlier_report(start, after, training_began=True)
    else:  # its ranges are measured
        assert _earlier_report(start, after, training_began=True) is not None


@pytest.mark.parametrize("change", ["train.num_epochs=3", "quantize.qat.lr=0.1", "dataset.img_size=64"])
def test_what_it_is_not_inputs(done, change):
    spec, start = done
    assert _earlier_report(start, _inputs(load_spec(spec, [change])), training_began=False) is not None


@pytest.mark.parametrize("name", [HEADS_FILE, EMA_FILE])
def test_it_is_made_of_heads_and_averages(done, name):
    spec, start = done
    spec.quantize.checkpoint = str(start)
    before = _inputs(spec)
    (start / name).write_bytes(b"others")
    assert _inputs(spec) != before
