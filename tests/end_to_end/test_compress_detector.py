"""A detector from its first step to an engine by `jobs/compress.py`, killed in every stage, ends as one left alone."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import onnx
import pytest
import torch
import yaml

from benchmarks.composites import write_set
from radioplat.models.detectors.checkpoint import load_detector
from radioplat.tasks.compress.compress import compress

pytest.importorskip("transformers")
pytest.importorskip("pycocotools")
pytestmark = [pytest.mark.proof, pytest.mark.timeout(900)]

ROOT = Path(__file__).parents[2]
NAMES = ["01_distill", "02_prune", "03_qat", "04_evaluate", "05_export", "06_engine", "07_evaluate"]
OPTIONS = dict(
    d_model=16, encoder_ffn_dim=16, decoder_ffn_dim=16, encoder_layers=1, decoder_layers=1, num_queries=8,
    encoder_attention_heads=2, decoder_attention_heads=2, num_denoising=4, num_feature_levels=3,
)  # fmt: skip


def spec_of(folder: Path) -> dict:
    """Labels first, then pruned, then QAT by labels and by the detector that was pruned."""
    sets = {name: write_set(folder / name, 16, name == "val", side=64) for name in ("train", "val")}
    whole = folder / "results/compress/01_distill/train/model_latest"
    bindings = [("srcs.1", "phi_s"), ("queries", "L2")]
    often = ["train.checkpoint_interval=2", "train.checkpoint_interval_unit=step"]
    return {
        "results_dir": str(folder / "results"),
        "model": {
            "task": "detection",
            "backbone": {"type": "resnet10t"},
            "detector": {"kind": "dino", "options": OPTIONS},
        },
        "dataset": {
            "img_size": 64,
            "batch_size": 8,
            "workers": 1,
            **{f"{name}_dataset": dict(images_dir=str(i), coco=str(c)) for name, (i, c) in sets.items()},
        },
        "train": {"max_steps": 6, "optim": {"policy": "multistep", "lr": 2e-3}, "validation_interval": 99},
        "prune": {"parts": ["hidden", "width"], "amount": 0.25},
        "quantize": {"calibration_batches": 1},
        "distill": {
            "teacher": [{"name": "whole", "pretrained_teacher_model_path": str(whole)}],
            "bindings": [
                {"teacher_module_name": name, "student_module_name": name, "criterion": loss, "weight": 1.0}
                for name, loss in bindings
            ],
        },
        "gen_trt_engine": {"backend": "onnxruntime"},
        "compress": {
            "stages": [name[3:] for name in NAMES],
            "changes": {
                "distill": ["distill.teacher=[]", "distill.bindings=[]", *often],
                "qat": ["quantize.qat.max_steps=6", *often],
            },
        },
        "cluster": {"mode": "local"},
    }


def kill_in(stage: str, file: Path) -> None:
    """SIGKILL `jobs/compress.py` while it is in a stage; where that trains, after its first checkpoint."""
    folder = file.parent / "results/compress"
    begun = {"01_distill": "train/model_epoch_*", "03_qat": "qat/model_epoch_*"}.get(stage, "experiment.yaml")
    command = [sys.executable, str(ROOT / "jobs/compress.py"), "-e", str(file)]
    with subprocess.Popen(command, env=os.environ | {"PYTHONPATH": str(ROOT)}, start_new_session=True) as process:
        end = time.monotonic() + 120
        while not list((folder / stage).glob(begun)) and process.poll() is None:
            assert time.monotonic() < end
            time.sleep(0.01)
        os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL
    stages = {entry["name"]: entry for entry in json.loads((folder / "compress.json").read_text())["stages"]}
    assert not stages[stage]["outcome"]


def test_killed_in_every_stage_it_ends_as_one_left_alone(tmp_path):
    for name in ("alone", "killed"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "spec.yaml").write_text(yaml.safe_dump(spec_of(tmp_path / name)))
    alone = compress(tmp_path / "alone/spec.yaml")
    for stage in NAMES:
        kill_in(stage, tmp_path / "killed/spec.yaml")
    lines: list[str] = []
    killed = compress(tmp_path / "killed/spec.yaml", say=lines.append)
    assert [line.partition(" ")[0] for line in lines if "is done already" in line] == NAMES[:-1]
    assert [entry.name for entry in killed.entries] == [entry.name for entry in alone.entries] == NAMES
    for ours, theirs in zip(killed.entries, alone.entries, strict=True):
        assert (ours.outcome.params, ours.outcome.macs) == (theirs.outcome.params, theirs.outcome.macs)
        assert ours.metrics == pytest.approx(theirs.metrics, abs=1e-6)
    ours, theirs = (load_detector(report.student).state_dict() for report in (killed, alone))
    assert all(torch.allclose(ours[name].float(), theirs[name].float(), atol=1e-4) for name in theirs)
    judged = {entry.name: entry.outcome for entry in killed.entries}["07_evaluate"]
    models = ["01_distill", "02_prune", "03_qat.untrained", "03_qat", "05_export", "06_engine"]
    assert [row["name"] for row in judged.facts["models"]] == models
    assert judged.facts["models"][-1]["state"] == "executed on cpu, evaluated"
    assert "data:image/png" in Path(judged.path).read_text()
    check_floats(Path(killed.entries[4].outcome.path))


def check_floats(file: Path) -> None:
    """The body multiplies in INT8; what says boxes and classes in floats."""
    graph = onnx.load(str(file)).graph
    makers = {output: node for node in graph.node for output in node.output}

    def rounded(value: str) -> bool:
        while value in makers and makers[value].op_type in ("Transpose", "Reshape"):
            value = makers[value].input[0]
        return value in makers and makers[value].op_type == "DequantizeLinear"

    found = {n.name: all(map(rounded, n.input[:2])) for n in graph.node if n.op_type in ("Conv", "MatMul", "Gemm")}
    assert all(found[name] for name in found if name.startswith("student.backbone."))
    for name in ("detr.decoder.bbox_embed.0.layers.2", "detr.decoder.class_embed.0", "detr.enc_bbox_head.layers.2"):
        assert not found[name]
    assert sum(found.values()) > 30
