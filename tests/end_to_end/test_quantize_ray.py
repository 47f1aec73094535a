"""quantize.mode: qat on a real Ray cluster with DeepSpeed: the same samples and losses as in one process."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path

import pytest
import ray
import safetensors.torch
import torch

import radioplat
from radioplat.models.quantized.quantizer import quantizers
from radioplat.tasks.quantize.quantize import quantize
from radioplat.tasks.quantize.report import QuantizeReport
from radioplat.tracking.follow import StepEvent
from radioplat.tracking.status import read_status
from radioplat.training.accounting.prove import prove_run

pytestmark = [pytest.mark.timeout(400), pytest.mark.proof]
STEPS = 4


@dataclass
class Trained:
    """A quantized student, and the losses of its training by step."""

    report: QuantizeReport
    losses: dict[int, float]

    @property
    def folder(self) -> Path:
        """Of the training."""
        return self.report.student.parent


@pytest.fixture(scope="module")
def cluster(ray_environment):
    """One small cluster of this module's own."""
    before = dict(os.environ)
    os.environ.update(ray_environment)
    ray.init(address="local", num_cpus=6, num_gpus=0, include_dashboard=False, log_to_driver=False)
    yield
    ray.shutdown()
    os.environ.clear()
    os.environ.update(before)


@pytest.fixture(scope="module")
def train(make_spec, quiet_run, tmp_path_factory):
    """train(mode, **fields of section train) -> :class:`Trained`, four steps from the quiet run's student."""

    def run(mode: str, **fields) -> Trained:
        spec = make_spec(tmp_path_factory.mktemp(mode), {"train": fields, "cluster": {"mode": mode}})
        spec["quantize"] = {
            "mode": "qat",
            "checkpoint": str(quiet_run.result.checkpoint),
            "calibration_batches": 4,
            "qat": {"num_epochs": 1},
        }
        events: list = []
        report = quantize(spec, callbacks=[events.append], say=lambda line: None)
        return Trained(report, {e.step: e.metrics["loss"] for e in events if isinstance(e, StepEvent)})

    return run


@pytest.fixture(scope="module")
def local(train):
    return train("local")


@pytest.fixture(scope="module")
def two_workers(cluster, train):
    return train("ray", num_gpus=2, zero_stage=2, enable_ema=True)


def test_same_ids_and_losses_at_one_and_two_workers(local, two_workers, ids_by_step):
    assert ids_by_step(local.folder) == ids_by_step(two_workers.folder)
    assert sorted(local.losses) == list(range(1, STEPS + 1))
    assert two_workers.losses[1] == pytest.approx(local.losses[1], rel=1e-5)
    for step, loss in local.losses.items():
        assert two_workers.losses[step] == pytest.approx(loss, rel=1e-3), step
    assert prove_run(two_workers.folder).holds


def test_scales_learned_and_are_averaged(local, two_workers):
    alone, two = (quantizers(radioplat.load_student(t.report.student, ema=False)) for t in (local, two_workers))
    for name, quantizer in alone.items():
        torch.testing.assert_close(two[name].scale, quantizer.scale, rtol=1e-3, atol=0)
    averaged = quantizers(radioplat.load_student(two_workers.report.student, ema=True))
    assert any(not torch.equal(averaged[name].scale, two[name].scale) for name in two)


def test_it_was_judged_as_what_it_becomes(two_workers):
    lines = [line for line in read_status(two_workers.folder / "status.json") if "validation" in line["message"]]
    assert lines and lines[-1]["kpi"]["converted/likeness/spatial"] > 0.9
    assert "converted/fidelity/lite0/spatial" in lines[-1]["kpi"]


@pytest.mark.parametrize("stage", [1, 3])
def test_bf16_keeps_fp32_scales(cluster, train, local, ids_by_step, stage):
    found = train("ray", num_gpus=2, zero_stage=stage, precision="bf16")
    assert ids_by_step(local.folder) == ids_by_step(found.folder)
    mean, expected = (sum(t.losses.values()) / STEPS for t in (found, local))
    assert mean == pytest.approx(expected, rel=0.02)
    tensors = safetensors.torch.load_file(found.report.student / "student.safetensors")
    scales = {name: value for name, value in tensors.items() if name.endswith("_quantizer.scale")}
    assert len(scales) == 18 and all(value.dtype is torch.float32 for value in scales.values())
    assert any(not torch.equal(value, value.bfloat16().float()) for value in scales.values())
