"""Targets measured while a student trains, and what a real DeepSpeed engine leaves of the transforms."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from radioplat.losses.target_transforms.transform import FORMS
from radioplat.models.features import Features
from radioplat.models.heads import HeadArchitecture
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.objectives.distill import DistillObjective, MicroBatch
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.teacher import ResolvedTeacher, resolve_teachers
from radioplat.spec.schema.distill import TargetNormConfig, TargetNormFit, TargetNormType
from radioplat.training.engine.registry import build_engine
from radioplat.training.targets.running_norm import RunningNorm

CPU = torch.device("cpu")


def teachers(kind: str = "phi_s") -> list[ResolvedTeacher]:
    teacher = {"name": "t", "model": {"backbone": {"type": "test_vit"}}, "mode": "combo", "loss_type": "MSE"}
    teacher["summary_loss_type"] = "cosine"
    return resolve_teachers(load_spec({"distill": {"target_norm": {"type": kind}, "teacher": [teacher]}}))


def student(kind: str = "phi_s") -> Student:
    torch.manual_seed(0)
    form = FORMS[TargetNormType(kind)]
    kwargs = {"embed_dim": 24, "depth": 1, "num_heads": 2}
    heads = (HeadArchitecture("t", 8, 12, summary_norm=form, spatial_norm=form),)
    return Student(StudentArchitecture("radio_vit_tiny_patch16", kwargs, img_size=32, heads=heads))


def said(step: int, count: int = 6) -> Features:
    generator = torch.Generator().manual_seed(step)
    scale = torch.logspace(1, -1, 12)
    return Features(
        (torch.randn(count, 8, generator=generator) + 9).bfloat16(),
        (torch.randn(count, 2, 2, 12, generator=generator) * scale - 4).bfloat16(),
    )


CONFIG = TargetNormConfig(TargetNormType.phi_s, TargetNormFit.running, refresh_steps=3, freeze_after=7)


def build(model: Student, saved: dict | None = None, start: int = 0, config: TargetNormConfig = CONFIG) -> RunningNorm:
    running = RunningNorm(model, teachers(config.type.value), config, CPU, start)
    running.load_state_dict(saved or {})
    return running


def run(running: RunningNorm, start: int, stop: int, cut: int = 6, skipped: tuple[int, ...] = ()) -> None:
    """Steps of six samples, in micro-batches of ``cut``; the skipped ones say NaN."""
    for step in range(start, stop):
        features = said(step)
        if step in skipped:
            features = features.map(lambda t: t * float("nan"))
        for i in range(0, 6, cut):
            running.see("t", features.map(lambda t, i=i: t[i : i + cut]), torch.ones(cut))
        running.step(step, commit=step not in skipped)


def buffers(model: Student) -> dict[str, torch.Tensor]:
    return {k: v.clone() for k, v in model.heads["t"].named_buffers()}


def test_when_it_moves():
    model, seen = student(), []
    running = build(model)
    for step in range(10):
        run(running, step, step + 1)
        seen.append(buffers(model)["spatial_rotation"])
    moved = [1] + [i + 1 for i in range(1, 10) if not torch.equal(seen[i], seen[i - 1])]
    assert moved == [1, 3, 6, 7]


def test_the_figures_are_those_of_all_that_was_seen():
    model = student()
    run(build(model), 0, 6)
    rows = torch.cat([said(step).spatial for step in range(6)]).flatten(0, 2)
    head = model.heads["t"]
    assert torch.allclose(head.spatial_mean, rows.double().mean(0).float(), rtol=1e-5)
    out = head.standardize("spatial", rows)
    assert ((out.var(0, unbiased=False) - 1).abs() < 0.02).all()


@pytest.mark.parametrize("kind", ["phi_s", "zca", "pca", "standardize_channels"])
def test_resumed_anywhere_and_cut_otherwise_it_is_the_quiet_run(kind):
    config = dataclasses.replace(CONFIG, type=TargetNormType(kind))
    quiet, broken = student(kind), student(kind)
    run(build(quiet, config=config), 0, 10)
    running = build(broken, config=config)
    for stop in (2, 4, 7, 10):
        start = {2: 0, 4: 2, 7: 4, 10: 7}[stop]
        run(running, start, stop, cut=2)
        running = build(broken, running.state_dict(), stop, config)
    for name, value in buffers(quiet).items():
        assert torch.allclose(buffers(broken)[name], value, rtol=1e-5, atol=1e-6), name


def test_a_skipped_step_leaves_no_trace():
    quiet, skipping = student(), student()
    first, second = build(quiet), build(skipping)
    run(first, 0, 2)
    first.step(2, commit=True)
    run(second, 0, 3, skipped=(2,))
    for name, value in buffers(quiet).items():
        assert torch.equal(buffers(skipping)[name], value), name


def test_without_it_nothing_is_kept():
    model = student()
    before = buffers(model)
    running = build(model, config=dataclasses.replace(CONFIG, fit=TargetNormFit.before))
    run(running, 0, 4)
    assert running.state_dict() == {}
    assert all(torch.equal(buffers(model)[k], v) for k, v in before.items())


@pytest.mark.usefixtures("process_group")
@pytest.mark.filterwarnings("ignore::FutureWarning")
@pytest.mark.parametrize(("precision", "stage"), [("fp32", 0), ("bf16", 1), ("bf16", 3)])
def test_a_deepspeed_engine_keeps_transforms_in_fp32_and_learns_in_their_space(precision, stage):
    """The very buffers that were fitted before the engine was built, and new ones set while it trains."""
    model = student()
    running = build(model)
    run(running, 0, 1)
    fitted = buffers(model)
    spec = load_spec({"train": {"precision": precision, "zero_stage": stage, "optim": {"lr": 0.01}}})
    module = DistillObjective(model, teachers(), "32").train()
    engine = build_engine(module, spec, 1)
    for name, value in buffers(model).items():
        assert torch.equal(value, fitted[name]) and value.dtype is torch.float32, name
    pixels = torch.randint(0, 256, (6, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    losses = []
    for step in range(1, 6):
        features = said(0)
        losses.append(engine(MicroBatch({"32": pixels}, torch.ones(6), torch.full((6,), -1), {"t": features})))
        # Before a student has learnt anything, a target of unit variance costs about 1 beside its own output.
        engine.backward(losses[-1]["loss"])
        engine.step()
        running.see("t", features, torch.ones(6))
        running.step(step, commit=True)
    assert 0.5 < float(losses[0]["loss/t/spatial"]) < 3
    assert float(losses[-1]["loss/t/spatial"]) < float(losses[0]["loss/t/spatial"])
    after = buffers(model)
    assert after["spatial_rotation"].dtype is torch.float32 and torch.isfinite(after["spatial_rotation"]).all()
    assert torch.allclose(after["spatial_rotation"] @ after["spatial_inverse"], torch.eye(12), atol=1e-5)
