"""quantize.mode: qat, by what it left: quantized, distilled on, judged as what it becomes, gone on with."""

from __future__ import annotations

import json
import shutil

import pytest
import torch

import radioplat
from radioplat.errors import EngineError, SpecError
from radioplat.models.quantized.quantizer import quantizers
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.export.export import export
from radioplat.tasks.plan.plan import plan
from radioplat.tasks.quantize.quantize import quantize
from radioplat.tracking.status import read_status

pytestmark = pytest.mark.timeout(240)
QAT = (
    "quantize.mode=qat",
    "quantize.calibration_batches=6",
    "quantize.qat.num_epochs=1",
    "train.checkpoint_interval=2",
    "train.checkpoint_interval_unit=step",
)


@pytest.fixture(scope="module")
def asked(quiet_run, tmp_path_factory):
    checkpoint = f"quantize.checkpoint={quiet_run.result.checkpoint}"
    folder = tmp_path_factory.mktemp("qat")
    return [*QAT, checkpoint, f"results_dir={folder}"], folder


@pytest.fixture(scope="module")
def report(quiet_run, asked):
    return quantize(quiet_run.file, asked[0], say=lambda line: None)


def test_its_scales_have_learned(report, asked):
    before, after = (quantizers(radioplat.load_student(path)) for path in (report.path, report.student))
    assert report.student.parent == asked[1] / "qat" and report.trained.global_step == 4
    assert before.keys() == after.keys() and len(after) == 18
    moved = [name for name in after if not torch.equal(before[name].scale, after[name].scale)]
    assert len(moved) > 9 and all(q.scale.dtype is torch.float32 and (q.scale > 0).all() for q in after.values())


def test_each_validation_judges_what_it_becomes(report):
    lines = [line for line in read_status(report.student.parent / "status.json") if "validation" in line["message"]]
    assert len(lines) == 1 and "the converted model is " in lines[0]["message"]
    kpi = lines[0]["kpi"]
    for name in ("knn/top1", "fidelity/lite0/summary", "fidelity/lite0/spatial", "fidelity/vit/spatial"):
        assert kpi[f"converted/{name}"] == pytest.approx(kpi[name], abs=0.15)
    assert kpi["converted/likeness/spatial"] > 0.9
    assert json.loads((report.student / "validation.json").read_text()) == kpi


@pytest.mark.proof
def test_the_same_command_goes_on_bit_for_bit(report, asked, quiet_run):
    whole = radioplat.load_student(report.student).state_dict()
    half = report.student.with_name("model_epoch_000_step_00002")
    shutil.rmtree(report.student)
    lines: list[str] = []
    again = quantize(quiet_run.file, asked[0], say=lines.append)
    assert any(line.endswith("quantized already") for line in lines)
    assert any(f"goes on from {half.name} at step 2 of 4" in line for line in lines)
    later = radioplat.load_student(again.student).state_dict()
    assert again.student == report.student and all(torch.equal(whole[k], later[k]) for k in whole)
    with pytest.raises(SpecError, match="quantize.algorithm: it has changed since the training"):
        quantize(quiet_run.file, [*asked[0], "quantize.algorithm=percentile"], say=lambda line: None)


def test_plan_plans_the_training_of_the_quantized_student(report, quiet_run, asked):
    found = plan(load_spec(quiet_run.file, asked[0]))
    assert not found.problems and found.facts["task"].startswith("quantize: quantize.mode is qat")
    assert found.facts["quantized student"].startswith("18 quantizers")
    assert f"{report.trained.global_step} steps in all" in found.facts["length"]
    plain = plan(load_spec(quiet_run.file, asked[0]), task="distill")
    assert "quantized student" not in plain.facts and "task" not in plain.facts


def test_plan_counts_quantizers(report, quiet_run, tmp_path):
    spec = load_spec(quiet_run.file, [f"train.pretrained_model_path={report.path}", f"results_dir={tmp_path}"])
    found = plan(spec)
    assert found.facts["quantized student"].startswith("18 quantizers: 9 on weights (int8), 9 on activations (int8)")
    spec = load_spec(spec, ["train.precision=fp16"])
    assert "train.precision: scales of quantizers are too small for fp16" in str(plan(spec).problems[0])


@pytest.mark.parametrize(
    ("override", "said"),
    [
        ("quantize.qat.lr=0", "quantize.qat.lr: must be above 0"),
        ("quantize.mode=ptq", "quantize.qat.num_epochs: nothing is trained in this mode"),
        ("distill.teacher=[]", "quantize.mode: mode qat needs teachers or labels"),
        ("train.precision=fp16", "train.precision: scales of quantizers are too small for fp16"),
    ],
)
def test_what_cannot_be_is_named(quiet_run, asked, override, said, tmp_path):
    with pytest.raises(SpecError, match=said):
        quantize(quiet_run.file, [*asked[0], f"results_dir={tmp_path}", override], say=lambda line: None)


@pytest.mark.proof
def test_an_exported_file_by_modelopt(quiet_run, tmp_path):
    spec = load_spec(quiet_run.file, [f"export.checkpoint={quiet_run.result.checkpoint}", f"results_dir={tmp_path}"])
    changes = ["quantize.backend=modelopt.onnx", "quantize.calibration_batches=3"]
    with pytest.raises(EngineError, match="quantize.model_path: there is no ONNX file .*radioplat export"):
        quantize(spec, changes)
    export(spec)
    report = quantize(spec, changes)
    assert report.path == tmp_path / "quantize" / "student_quantized.onnx" and report.images == 6
    assert len(report.layers) >= 9 and min(report.cosine.values()) > 0.98
    told = json.loads((tmp_path / "quantize" / "quantize.json").read_text())
    assert len(told["layers"]) == len(report.layers)
