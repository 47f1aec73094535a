"""Bindings between detectors: each alone closes its own gap, and its gradient is its weight times its own."""

from __future__ import annotations

import copy
import dataclasses

import pytest
import torch

from radioplat.errors import SpecError
from radioplat.models.detectors.base import Detector, DetectorArchitecture
from radioplat.models.detectors.checkpoint import save_detector
from radioplat.models.student.student import StudentArchitecture
from radioplat.objectives.detect import DetectObjective
from radioplat.objectives.detector_bindings import binding_widths
from radioplat.objectives.distill import MicroBatch
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.teacher import resolve_teachers
from radioplat.spec.schema.cluster import TeacherServiceConfig
from radioplat.spec.schema.distill import DistillConfig
from radioplat.teachers.base.teacher import FrozenTeacher, describe

pytest.importorskip("transformers")

OPTIONS = dict(
    d_model=16, encoder_hidden_dim=16, encoder_ffn_dim=16, decoder_ffn_dim=16, decoder_layers=2, num_queries=8,
    encoder_attention_heads=2, decoder_attention_heads=2, num_denoising=4, hidden_expansion=0.5,
)  # fmt: skip
BOXES = torch.tensor([[[4, 4, 30, 40, 1, 0.0]], [[0, 0, 0, 0, -1, 0]]])  # the second image has no object


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    torch.manual_seed(1)
    student = StudentArchitecture("resnet10t", {"channels": (16, 24, 32, 48)}, img_size=64)
    teacher = Detector(DetectorArchitecture(student, 3, "rtdetr", OPTIONS | {"num_queries": 10}))
    folder = tmp_path_factory.mktemp("teacher")
    save_detector(teacher, folder)
    return folder


def student():
    torch.manual_seed(0)
    return Detector(DetectorArchitecture(StudentArchitecture("resnet10t", img_size=64), 3, "rtdetr_v2", OPTIONS))


def taught(file, *bindings):
    """The module of a student with these bindings (theirs, mine, criterion, weight), a batch, and the answers to it."""
    fields = ("teacher_module_name", "student_module_name", "criterion", "weight")
    spec = load_spec(
        {
            "model": {"task": "detection"},
            "dataset": {"img_size": 64},
            "distill": {
                "teacher": {"pretrained_teacher_model_path": str(file)},
                "bindings": [dict(zip(fields, binding, strict=True)) for binding in bindings],
            },
        }
    )
    (teacher,) = resolve_teachers(spec)
    detector, infos = student(), {teacher.name: describe(teacher)}
    widths = binding_widths(detector, [teacher], infos, 64)
    config = DistillConfig(box_loss_weight=0.0)
    module = DetectObjective(detector, "64", [teacher], widths, config)
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    answer = FrozenTeacher(teacher).forward(images, teacher.wanted).map(lambda t: t.clone())
    batch = MicroBatch({"64": images}, torch.ones(2), torch.full((2,), -1), {teacher.name: answer}, boxes=BOXES)
    return module, batch, teacher


CASES = [
    ("srcs.1", "srcs.1", "L1"),
    ("srcs.1", "srcs.1", "L2"),
    ("srcs.2", "srcs.1", "CS"),
    ("srcs.1", "srcs.1", "phi_s"),
    ("srcs.0", "srcs.0", "IOU"),
    ("memory.2", "memory.2", "IOU"),
    ("memory.1", "detr.model.encoder.pan_blocks.0", "L2"),
    ("queries", "queries", "L2"),
    ("pred_logits", "pred_logits", "KL"),
    ("pred_logits", "pred_logits", "L2"),
    ("pred_boxes", "pred_boxes", "L1"),
]


def by_criterion(cases):
    """The first case of each criterion; the others are proofs."""
    first = {criterion: case for *case, criterion in reversed(cases)}
    for case in cases:
        marks = () if first[case[-1]] == list(case[:-1]) else pytest.mark.proof
        yield pytest.param(case, id="-".join(case), marks=marks)


@pytest.fixture(scope="module")
def all_bound(file):
    """A module with all bindings, and what :func:`taught` gives beside it."""
    return taught(file, *((*case, 0.0) for case in CASES))


def weighing(module, case, weight):
    """A copy in which ``case`` alone has a weight; its place among the bindings."""
    module, place = copy.deepcopy(module), CASES.index(case)
    (teacher,) = module.teachers
    bindings = [dataclasses.replace(b, weight=weight if i == place else 0.0) for i, b in enumerate(teacher.bindings)]
    module.teachers = [dataclasses.replace(teacher, bindings=tuple(bindings))]
    return module, place


@pytest.mark.parametrize("case", by_criterion(CASES[:-1]))  # boxes move slowly: see DINO's
def test_a_binding_alone_closes_its_gap(all_bound, case):
    module, batch, teacher = all_bound
    module, place = weighing(module, case, 1.0)
    module.train()
    optimizer = torch.optim.AdamW(module.parameters(), lr=5e-3, weight_decay=0)
    gaps = []
    for _ in range(8):
        torch.manual_seed(0)
        found = module(batch)
        assert torch.equal(found["loss"], found[f"loss/{teacher.name}/binding_{place}"])
        gaps.append(found["loss"].item())
        optimizer.zero_grad()
        found["loss"].backward()
        optimizer.step()
    assert gaps[-1] < 0.9 * gaps[0], gaps


@pytest.mark.parametrize("case", CASES, ids="-".join)
def test_the_gradient_is_the_weight_times_its_own(all_bound, case):
    whole, batch, _ = all_bound
    gradients = []
    for weight in (1.0, 0.25):
        module, _ = weighing(whole, case, weight)
        module.eval()(batch)["loss"].backward()
        found = {name: p.grad for name, p in module.named_parameters() if p.grad is not None}
        gradients.append({name: gradient.clone() for name, gradient in found.items() if gradient.any()})
    assert gradients[0] and gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], 0.25 * gradient, rtol=1e-4, atol=1e-9)


def test_bindings_and_boxes_add_up(file):
    module, batch, teacher = taught(file, ("srcs.1", "srcs.1", "L2", 2.0), ("queries", "queries", "L1", 0.5))
    module.box_loss_weight = 3.0
    found = module.eval()(batch)
    own = sum(found[f"loss/{name}"] for name in ("vfl", "bbox", "giou"))
    bound = [found[f"loss/{teacher.name}/binding_{i}"] for i in range(2)]
    torch.testing.assert_close(found["loss"], 3 * own + 2 * bound[0] + 0.5 * bound[1])


def test_images_without_objects_are_taught_by_maps_and_masked_out_of_iou(file):
    module, batch, teacher = taught(file, ("srcs.1", "srcs.1", "IOU", 1.0), ("srcs.1", "srcs.1", "L2", 1.0))
    module.eval()
    both = module(batch)
    first = dataclasses.replace(batch, weight=torch.tensor([1.0, 0.0]))
    empty = dataclasses.replace(batch, weight=torch.tensor([0.0, 1.0]))
    iou, l2 = (f"loss/{teacher.name}/binding_{i}" for i in range(2))
    torch.testing.assert_close(both[iou], module(first)[iou])  # the other weighs nothing
    alone = module(empty)
    assert alone[iou] == 0 and alone[l2] > 0 and alone["loss"].isfinite()
    alone["loss"].backward()
    assert all(p.grad.isfinite().all() for p in module.parameters() if p.grad is not None)


def test_samples_without_weight_may_be_anything(all_bound):
    module, batch, teacher = all_bound
    module = copy.deepcopy(module).eval()
    bindings = tuple(dataclasses.replace(bound, weight=1.0) for bound in teacher.bindings)
    module.teachers = [dataclasses.replace(teacher, bindings=bindings)]
    first = dataclasses.replace(batch, weight=torch.tensor([1.0, 0.0]))
    told = {name: value.clone() for name, value in batch.targets[teacher.name].named.items()}
    for value in told.values():
        value[1] = torch.nan
    answer = dataclasses.replace(batch.targets[teacher.name], named=told)
    spoilt = dataclasses.replace(first, targets={teacher.name: answer})
    torch.testing.assert_close(module(first)["loss"], module(spoilt)["loss"])
    nobody = dataclasses.replace(spoilt, weight=torch.zeros(2))
    assert module(nobody)["loss"] == 0


@pytest.mark.parametrize(
    "binding, says",
    [
        (("srcs.1", "srcs.9", "L2", 1.0), "no module 'srcs.9'"),
        (("srcs.9", "srcs.1", "L2", 1.0), "no module 'srcs.9'"),
        (("queries", "srcs.1", "L2", 1.0), "srcs.1 of the student against queries"),
        (("pred_boxes", "pred_boxes", "IOU", 1.0), "IOU looks at maps"),
        (("srcs.1", "detr.model.decoder.layers.0", "L2", 1.0), "a map"),
    ],
)
def test_what_cannot_be_compared_is_named(file, binding, says):
    with pytest.raises(SpecError, match=says.replace("[", r"\[")):
        taught(file, binding)


def test_a_detecting_teacher_computes_in_fp32_where_nothing_is_said(file):
    _, _, teacher = taught(file, ("srcs.1", "srcs.1", "L2", 1.0))
    assert teacher.service == TeacherServiceConfig(max_batch=8)
    assert FrozenTeacher(teacher).dtype is torch.float32
