"""Fifty optimizer steps with TAO's own loss modules and with ours, as ``benchmarks/judges/tao_steps.py`` compares them.

``tao_steps.npz`` was recorded from NVIDIA-TAO/tao-pytorch d99ff77 by its ``record``; no code of TAO is here.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from benchmarks.judges import tao_steps
from radioplat.losses.target_transforms.transform import FORMS
from radioplat.models.features import Features
from radioplat.models.heads import HeadArchitecture
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.objectives.distill import DistillObjective
from radioplat.objectives.micro_batch import MicroBatch
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.teacher import ResolvedTeacher, resolve_teachers
from radioplat.spec.schema.root import Spec
from radioplat.training.targets.running_norm import RunningNorm

RECORDED = Path(__file__).with_name("tao_steps.npz")
VIEW = str(tao_steps.SIDE)


@pytest.fixture(scope="module")
def reference() -> dict[str, np.ndarray]:
    return dict(np.load(RECORDED))


@pytest.mark.parametrize("case", tao_steps.CASES)
def test_the_same_losses_and_gradients(reference, case):
    ours = train(case, {k.removeprefix(f"{case}/"): v for k, v in reference.items() if k.startswith(f"{case}/")})
    one = {case: tao_steps.CASES[case]}
    found = tao_steps.compare(reference, {f"{case}/{key}": value for key, value in ours.items()}, one)
    assert found[case]["agrees"], found


def spec_of(case: str) -> Spec:
    teachers = [
        {"name": f"t{i}", "loss_type": given.loss_type, "mode": given.mode, "loss_lambda": given.weight}
        for i, given in enumerate(tao_steps.CASES[case].teachers)
    ]
    for teacher, given in zip(teachers, tao_steps.CASES[case].teachers, strict=True):
        if given.mode == "combo":
            teacher["summary_loss_type"] = given.summary_loss_type
    own = {"dataset": "CLDataset"} if case == "classification" else {}
    dataset = {"img_size": tao_steps.SIDE, "batch_size": tao_steps.BATCH, **own}
    distill = {"teacher": teachers, "mlp_hidden_size": tao_steps.HIDDEN}
    return load_spec({"compat": "tao", "dataset": dataset, "distill": distill})


def head_of(teacher: ResolvedTeacher) -> HeadArchitecture:
    width = {kind: tao_steps.WIDTH if kind in teacher.wanted else None for kind in ("summary", "spatial")}
    return HeadArchitecture(
        teacher.name,
        summary_dim=width["summary"],
        spatial_dim=width["spatial"],
        hidden=teacher.hidden,
        summary_norm=FORMS[teacher.summary_norm],
        spatial_norm=FORMS[teacher.spatial_norm],
        raw_kinds=teacher.raw_kinds,
    )


def train(case: str, recorded: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Train our objective from the recorded weights; return losses and gradients by their recorded names."""
    spec = spec_of(case)
    teachers = resolve_teachers(spec)
    model = {**tao_steps.STUDENT}
    architecture = StudentArchitecture(
        model.pop("model_name"), model, img_size=tao_steps.SIDE, heads=tuple(map(head_of, teachers))
    )
    student = Student(architecture)
    modules = {"student": student.backbone.model}
    for i, teacher in enumerate(teachers):
        for kind in ("spatial", "summary"):
            if (layers := getattr(student.heads[teacher.name], kind)) is not None:
                modules[f"head.{i}.{kind}"] = layers
    for part, module in modules.items():
        prefix = f"weight/{part}."
        module.load_state_dict(
            {k.removeprefix(prefix): torch.tensor(v) for k, v in recorded.items() if k.startswith(prefix)}
        )
    objective = DistillObjective(student, teachers, VIEW, spec.distill).train()
    norm = RunningNorm(student, teachers, spec.distill.target_norm, torch.device("cpu"))
    parameters = [p for module in modules.values() for p in module.parameters()]
    optimizer = torch.optim.AdamW(parameters, tao_steps.LEARNING_RATE, weight_decay=tao_steps.WEIGHT_DECAY)
    found, losses = {}, []
    for step in range(tao_steps.STEPS):
        images, features = tao_steps.inputs(case, step)
        weight = torch.ones(len(images))
        targets = {
            teacher.name: Features(torch.tensor(summary).bfloat16(), torch.tensor(spatial).bfloat16())
            for teacher, (summary, spatial) in zip(teachers, features, strict=True)
        }
        for name, answer in targets.items():
            norm.see(name, answer, weight)
        norm.targets_arrived(step)
        batch = MicroBatch({VIEW: torch.tensor(images)}, weight, torch.full((len(images),), -1), targets)
        loss = objective(batch)["loss"]
        optimizer.zero_grad()
        loss.backward()
        for part, module in modules.items() if step in tao_steps.RECORDED else ():
            flat = [(torch.zeros_like(p) if p.grad is None else p.grad).flatten() for p in module.parameters()]
            found[f"gradient/{step}/{part}"] = torch.cat(flat).numpy().copy()
        optimizer.step()
        losses.append(float(loss.detach()))
    return {**found, "losses": np.array(losses)}
