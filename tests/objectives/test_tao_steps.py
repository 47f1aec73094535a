"""Fifty optimizer steps with TAO's own loss modules and with ours, as ``benchmarks/judges/tao_steps.py`` compares them.

``tao_steps.npz`` was recorded from NVIDIA-TAO/tao-pytorch d99ff77 by its ``record``; no code of TAO is here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import nn

from benchmarks.judges import tao_detectors, tao_steps
from radioplat.losses.target_transforms.transform import FORMS
from radioplat.models.detectors.base import Detector, DetectorArchitecture, Outputs
from radioplat.models.features import Features
from radioplat.models.heads import HeadArchitecture
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.objectives.detect import DetectObjective
from radioplat.objectives.distill import DistillObjective
from radioplat.objectives.micro_batch import MicroBatch
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.teacher import ResolvedTeacher, resolve_teachers
from radioplat.spec.resolved.terms import MODULE
from radioplat.spec.schema.root import Spec
from radioplat.training.targets.running_norm import RunningNorm

RECORDED = Path(__file__).with_name("tao_steps.npz")
SPECS = Path(__file__).parents[1] / "end_to_end" / "tao_specs"
VIEW = str(tao_steps.SIDE)
# Modules whose outputs are the maps of the bindings.
MAPS = {"rtdetr": "detr.model.encoder_input_proj", "dino": "detr.input_proj"}


@pytest.fixture(scope="module")
def reference() -> dict[str, np.ndarray]:
    return dict(np.load(RECORDED))


@pytest.mark.parametrize("case", [*tao_steps.CASES, *tao_detectors.DETECTORS])
def test_the_same_losses_and_gradients(reference, case):
    recorded = {k.removeprefix(f"{case}/"): v for k, v in reference.items() if k.startswith(f"{case}/")}
    modules, loss_of = (detector if case in tao_detectors.DETECTORS else features)(case)
    for part, module in modules.items():
        prefix = f"weight/{part}."
        module.load_state_dict(
            {k.removeprefix(prefix): torch.tensor(v) for k, v in recorded.items() if k.startswith(prefix)}
        )
    ours = tao_steps.optimize(modules, loss_of)
    found = tao_steps.compare(reference, {f"{case}/{key}": value for key, value in ours.items()}, [case])
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


def features(case: str) -> tuple[dict[str, nn.Module], Callable[[int], torch.Tensor]]:
    """Return the trainable modules by their recorded names, and our loss of a step."""
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
    objective = DistillObjective(student, teachers, VIEW, spec.distill).train()
    norm = RunningNorm(student, teachers, spec.distill.target_norm, torch.device("cpu"))

    def loss_of(step: int) -> torch.Tensor:
        images, answers = tao_steps.inputs(case, step)
        weight = torch.ones(len(images))
        targets = {
            teacher.name: Features(torch.tensor(summary).bfloat16(), torch.tensor(spatial).bfloat16())
            for teacher, (summary, spatial) in zip(teachers, answers, strict=True)
        }
        for name, answer in targets.items():
            norm.see(name, answer, weight)
        norm.targets_arrived(step)
        batch = MicroBatch({VIEW: torch.tensor(images)}, weight, torch.full((len(images),), -1), targets)
        return objective(batch)["loss"]

    return modules, loss_of


def detector(case: str) -> tuple[dict[str, nn.Module], Callable[[int], torch.Tensor]]:
    """Return the same for a shipped detector spec: all losses are ours, on the outputs of the judge's small student."""
    pytest.importorskip("transformers")
    given, side = tao_detectors.DETECTORS[case], tao_detectors.SIDE
    small = ("hidden_dim=32", "dim_feedforward=32", "nheads=4", "enc_layers=1", "dec_layers=1", "num_queries=8")
    changed = ["compat=tao", "results_dir=unused", *(f"model.{field}" for field in small)]
    if case == "rtdetr":
        changed.append("model.feat_channels=[32, 32, 32]")
    else:
        binding = "{{teacher_module_name: {0}, student_module_name: {0}, criterion: {1}, weight: {2}}}"
        changed.append(f"distill.bindings=[{', '.join(binding.format(*each) for each in given.bindings)}]")
        changed += ["distill.teacher.pretrained_teacher_model_path=unused", "model.pretrained_backbone_path=unused"]
        sources = (f"dataset.{split}_data_sources" for split in ("train", "val", "test"))
        changed += [f"{source}={{image_dir: unused, json_file: unused}}" for source in sources]
    spec = load_spec(SPECS / f"{case}.yaml", changed)
    assert spec.dataset.num_classes == given.classes
    teachers = resolve_teachers(spec)
    (teacher,) = teachers
    student = SmallStudent(case, spec)
    of_queries = {"pred_logits": given.classes, "pred_boxes": 4}
    width = {b.name: of_queries.get(b.student_module, tao_detectors.WIDTH) for b in teacher.bindings}
    widths = {f"{teacher.name}/{name}": (value, value) for name, value in width.items()}
    objective = DetectObjective(student, str(side), teachers, widths, spec.distill).train()

    def loss_of(step: int) -> torch.Tensor:
        shown = tao_detectors.detector_inputs(case, step)
        named = {f"{MAPS[case]}.{i}": level for i, level in enumerate(shown.maps)}
        named |= {"pred_logits": shown.logits, "pred_boxes": shown.boxes}
        named |= {name: getattr(shown, name) for name in ("proposal_logits", "proposal_boxes", "proposal_queries")}
        answer = Features(named={MODULE + name: torch.tensor(value).bfloat16() for name, value in named.items()})
        boxes = torch.zeros(len(shown.objects), tao_detectors.MOST_OBJECTS, 6)
        boxes[..., 4] = -1
        for row, objects in zip(boxes, shown.objects, strict=True):
            row[: len(objects), :5] = torch.tensor(objects).float()
        images = torch.tensor(shown.images)
        batch = MicroBatch(
            {str(side): images}, torch.ones(len(images)), torch.full((len(images),), -1), {teacher.name: answer},
            boxes=boxes,
        )  # fmt: skip
        return objective(batch)["loss"]

    return dict(student.small.named_children()), loss_of


class SmallStudent(nn.Module):
    """The judge's small student with the names and losses of our detector of a spec."""

    def __init__(self, case: str, spec: Spec) -> None:
        super().__init__()
        self.small = tao_detectors.detector_student(case)
        config = spec.model.detector
        backbone = StudentArchitecture("resnet10t", {"channels": (8, 8, 16, 24)}, img_size=tao_detectors.SIDE)
        real = Detector(DetectorArchitecture(backbone, spec.dataset.num_classes, config.kind, dict(config.options)))
        self._real = [real.detr]  # a list: it is no part of the student
        taps = nn.ModuleList(nn.Identity() for _ in self.small.maps)
        path, _, last = MAPS[case].rpartition(".")
        inner = self
        for name in path.split("."):
            inner.add_module(name, nn.Module())
            inner = inner.get_submodule(name)
        inner.add_module(last, taps)
        self._taps = [taps]
        self.queries, self.pred_logits, self.pred_boxes = nn.Identity(), nn.Identity(), nn.Identity()

    def outputs(self, images: torch.Tensor, targets: list[dict[str, torch.Tensor]]) -> Outputs:
        maps, scores, boxes = self.small(images.float() / 255)
        for tap, level in zip(self._taps[0], maps, strict=True):
            tap(level)
        logits, places = self.pred_logits(scores[-1]), self.pred_boxes(boxes[-1])
        self.queries(places)
        real = self._real[0]
        if hasattr(real, "loss"):
            losses = real.loss((scores[1:], boxes[1:]), (scores[0], boxes[0]), None, None, targets)
        else:
            layers = scores[1:].transpose(0, 1), boxes[1:].transpose(0, 1)
            losses = real.loss_function(
                logits, targets, images.device, places, real.config, *layers, scores[0], boxes[0]
            )[1]
        return Outputs(logits, places, losses)
