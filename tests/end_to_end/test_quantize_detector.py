"""A detector through `radioplat quantize`, and on from there: evaluation, training with learned scales, QAT as one."""

from __future__ import annotations

import json

import pytest
import torch

import radioplat
from benchmarks.composites import write_set
from radioplat.errors import RadioplatError
from radioplat.models.detectors.checkpoint import load_detector
from radioplat.models.quantized.quantizer import quantizers
from radioplat.models.student.checkpoint import save_student
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.tasks.evaluate.evaluate import evaluate
from radioplat.tasks.quantize.quantize import quantize

pytest.importorskip("transformers")
pytest.importorskip("pycocotools")

OPTIONS = dict(
    d_model=16, encoder_hidden_dim=16, encoder_ffn_dim=16, decoder_ffn_dim=16, decoder_layers=2, num_queries=8,
    encoder_attention_heads=2, decoder_attention_heads=2, num_denoising=4, hidden_expansion=0.5,
)  # fmt: skip


@pytest.fixture(scope="module")
def spec(tmp_path_factory):
    """A mapping, and a detector of two steps in its results."""
    folder = tmp_path_factory.mktemp("run")
    sets = {name: write_set(folder / name, 8, name == "val", side=64) for name in ("train", "val")}
    splits = {f"{name}_dataset": dict(images_dir=str(i), coco=str(c)) for name, (i, c) in sets.items()}
    spec = {
        "results_dir": str(folder / "results"),
        "model": {
            "task": "detection",
            "backbone": {"type": "resnet10t"},
            "detector": {"kind": "rtdetr_v2", "options": OPTIONS},
        },
        "dataset": {"img_size": 64, "batch_size": 2, "workers": 1, **splits},
        "train": {"max_steps": 2, "optim": {"policy": "multistep"}, "validation_interval": 9},
        "quantize": {"calibration_batches": 2},
        "cluster": {"mode": "local"},
    }
    radioplat.train(spec)
    return spec


@pytest.fixture(scope="module")
def quantized(spec):
    """What `quantize` says of that detector."""
    return quantize(spec, say=print)


def test_a_detector_is_quantized_judged_and_trained_on(spec, quantized, tmp_path):
    report = quantized
    assert report.images == 4 and report.folded > 20 and min(report.cosine.values()) > 0.98
    assert json.loads((report.path / "quantize.json").read_text())["layers"][0]["type"] == "Conv2d"
    assert report.layers[0].name.startswith("student.backbone.")
    assert report.skipped["detr.model.decoder.bbox_embed.1.layers.2"] == "a regression"
    assert evaluate(spec, (f"evaluate.checkpoint={report.path}",)).result.images == 8
    start = load_detector(report.path)
    again = [f"train.pretrained_model_path={report.path}", "model.backbone.type=null", f"results_dir={tmp_path}"]
    trained = load_detector(radioplat.train(spec, again).checkpoint)
    assert trained.architecture.quantized == start.architecture.quantized
    assert trained.architecture.student.quantized == start.architecture.student.quantized
    before, after = ({n: q.scale.detach() for n, q in quantizers(d).items()} for d in (start, trained))
    apart = {name: (after[name] / before[name] - 1).abs().max() for name in before}
    moved = sum(bool(change > 0) for change in apart.values())
    assert moved > 0.9 * len(apart) and max(apart.values()) < 0.1


@pytest.mark.proof
@pytest.mark.parametrize("taught", [False, True], ids=["boxes", "teacher"])
def test_qat_is_both_and_goes_on(spec, taught, tmp_path):
    floats = f"{spec['results_dir']}/train/model_latest"
    if taught:  # by the detector that it was made of
        bindings = [
            {"teacher_module_name": name, "student_module_name": name, "criterion": loss, "weight": 1.0}
            for name, loss in (("srcs.1", "phi_s"), ("memory.0", "L2"), ("queries", "L2"), ("pred_logits", "KL"))
        ]
        teacher = {"name": "floats", "pretrained_teacher_model_path": floats}
        spec = spec | {"distill": {"teacher": [teacher], "bindings": bindings, "decoder_from_teacher": True}}
    where = [f"results_dir={tmp_path}", f"quantize.checkpoint={floats}"]
    asked = [*where, "quantize.mode=qat", "quantize.qat.max_steps=1"]
    told: list[str] = []
    report = quantize(spec, asked, say=told.append)
    assert any("decoder_from_teacher is left out" in line for line in told) is taught
    trained = load_detector(report.student)
    assert report.trained.global_step == 1 and trained.architecture.quantized is not None
    said: list[str] = []
    assert quantize(spec, [*asked[:-1], "quantize.qat.max_steps=2"], say=said.append).trained.resumed_from == 1
    assert any("quantized already" in line for line in said)
    with torch.no_grad():
        assert trained(torch.zeros(1, 3, 64, 64, dtype=torch.uint8)).logits.isfinite().all()


@pytest.mark.parametrize(
    "change, says",
    [
        (["quantize.layers=[{module_name: nothing, weights: {dtype: int8}}]"], "no layer is called 'nothing'"),
        (["quantize.skip_names=['decoder.layers.9']"], r"quantize.skip_names\[0\]"),
    ],
)
def test_patterns_that_meet_nothing_are_named(spec, tmp_path, change, says):
    checkpoint = f"quantize.checkpoint={spec['results_dir']}/train/model_latest"
    with pytest.raises(RadioplatError, match=says):
        quantize(spec, [f"quantize.results_dir={tmp_path}", checkpoint, *change])


def test_what_is_something_else_is_named(spec, quantized, tmp_path):
    other = [f"quantize.results_dir={tmp_path}", f"quantize.checkpoint={quantized.path}"]
    with pytest.raises(RadioplatError, match="quantized already"):
        quantize(spec, other)
    student = Student(StudentArchitecture("resnet10t", img_size=64))
    (tmp_path / "student").mkdir()
    save_student(student, student.state_dict(), tmp_path / "student")
    other = [f"results_dir={tmp_path}", f"quantize.checkpoint={tmp_path}/student", "quantize.mode=qat"]
    with pytest.raises(RadioplatError, match="student is a student. Set it to features"):
        quantize(spec, other)
    start = [f"train.pretrained_model_path={quantized.path}", f"results_dir={tmp_path}"]
    with pytest.raises(RadioplatError, match="model.detector: the quantized detector"):
        radioplat.train(spec, [*start, "model.detector.options.num_queries=9"])
