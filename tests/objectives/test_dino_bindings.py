"""What DINO learns of another by TAO's spec: logits, boxes and the encoder's input, with unlike numbers of queries."""

from __future__ import annotations

import pytest
import torch
import yaml

from radioplat.design.detector_teachers import teacher_file_problems
from radioplat.models.detectors.base import Detector, DetectorArchitecture
from radioplat.models.detectors.checkpoint import save_detector
from radioplat.models.student.student import StudentArchitecture
from radioplat.objectives.detect import DetectObjective
from radioplat.objectives.detector_bindings import binding_widths
from radioplat.objectives.distill import MicroBatch
from radioplat.spec.checks.tasks.training_run import check
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.teacher import resolve_teachers
from radioplat.spec.schema.distill import DistillConfig
from radioplat.teachers.base.teacher import FrozenTeacher, describe

pytest.importorskip("transformers")

SPEC = """
model: {backbone: resnet10t, num_feature_levels: 3, hidden_dim: 16, nheads: 2, enc_layers: 1, dec_layers: 2,
        dim_feedforward: 16, num_queries: 8, dn_number: 4}
distill:
  teacher: {backbone: resnet10t, train_backbone: false, num_feature_levels: 3, enc_layers: 1, dec_layers: 1,
            num_queries: 10, dim_feedforward: 16}
"""
BODY = "model.backbone.0.body"
BOXES = torch.tensor([[[4, 4, 30, 40, 1, 0.0]], [[0, 0, 0, 0, -1, 0]]])  # the second image has no object
CASES = [(name, criterion) for name in ("pred_logits", "pred_boxes", BODY) for criterion in ("L1", "L2", "KL")]
SMALL = dict(d_model=16, num_feature_levels=3, encoder_layers=1, encoder_ffn_dim=16, decoder_ffn_dim=16,
             encoder_attention_heads=2, decoder_attention_heads=2)  # fmt: skip


def dino(seed: int, **options) -> Detector:
    """With boxes that move: at the start they all stay, and hide what is learned of them."""
    torch.manual_seed(seed)
    student = StudentArchitecture("resnet10t", {"channels": (8, 16, 24, 32)}, img_size=64)
    detector = Detector(DetectorArchitecture(student, 3, "dino", SMALL | options))
    for head in (detector.detr.enc_bbox_head, *detector.detr.decoder.bbox_embed):
        torch.nn.init.normal_(head.layers[-1].weight, std=0.3)
    return detector


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    folder = tmp_path_factory.mktemp("teacher")
    save_detector(dino(1, num_queries=10, decoder_layers=1), folder)
    return folder


def spec_of(file, *bindings, **teacher):
    tree = yaml.safe_load(SPEC) | {"dataset": {"img_size": 64}}
    tree["distill"]["teacher"] |= {"pretrained_teacher_model_path": str(file), **teacher}
    names = ("teacher_module_name", "student_module_name", "criterion", "weight")
    tree["distill"]["bindings"] = [dict(zip(names, (n, n, c, w), strict=True)) for n, c, w in bindings]
    return load_spec(tree)


def taught(spec):
    """The module of a student in evaluation, and a batch with what the teacher says of it."""
    (teacher,) = resolve_teachers(spec)
    detector = dino(0, **{"num_queries": 8, "decoder_layers": 2, "num_denoising": 4})
    widths = binding_widths(detector, [teacher], {teacher.name: describe(teacher)}, 64)
    module = DetectObjective(detector, "64", [teacher], widths, DistillConfig(box_loss_weight=0.0)).eval()
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    answer = FrozenTeacher(teacher).forward(images, teacher.wanted).map(torch.clone)
    batch = MicroBatch({"64": images}, torch.ones(2), torch.full((2,), -1), {teacher.name: answer}, boxes=BOXES)
    return module, batch, teacher


# Each module and each criterion once; the other pairs are proofs.
SAMPLED = [("pred_logits", "KL"), ("pred_boxes", "L1"), (BODY, "L2")]
PAIRS = [pytest.param(c, id="-".join(c), marks=() if c in SAMPLED else pytest.mark.proof) for c in CASES]


@pytest.mark.parametrize("case", PAIRS)
def test_a_binding_alone_closes_its_gap(file, case):
    module, batch, teacher = taught(spec_of(file, (*case, 1.0)))
    optimizer = torch.optim.Adam(module.parameters(), lr=1e-2)
    gaps = []
    for _ in range(12):
        found = module(batch)
        bound = [found[f"loss/{teacher.name}/{b.name}"] for b in teacher.bindings]
        assert len(bound) == (3 if case[0] == BODY else 1) and torch.isclose(found["loss"], sum(bound))
        gaps.append(found["loss"].item())
        optimizer.zero_grad()
        found["loss"].backward()
        optimizer.step()
    assert gaps[-1] < 0.9 * gaps[0], gaps


@pytest.mark.parametrize("case", PAIRS)
def test_the_gradient_is_the_weight_times_its_own(file, case):
    """Once, not squared as in TAO, which multiplies a binding's weight in twice."""
    gradients = []
    for weight in (1.0, 0.25):
        module, batch, _ = taught(spec_of(file, (*case, weight)))
        module(batch)["loss"].backward()
        gradients.append({n: p.grad for n, p in module.named_parameters() if p.grad is not None and p.grad.any()})
    assert gradients[0] and gradients[0].keys() == gradients[1].keys()
    for name, gradient in gradients[0].items():
        torch.testing.assert_close(gradients[1][name], 0.25 * gradient, rtol=1e-4, atol=1e-9)


def test_queries_are_compared_whatever_their_order(file):
    """A teacher whose queries come in another order teaches the same."""
    module, batch, teacher = taught(spec_of(file, ("pred_logits", "L2", 1.0), ("pred_boxes", "L1", 1.0)))
    before = module(batch)
    told = batch.targets[teacher.name].named
    order = torch.randperm(10, generator=torch.Generator().manual_seed(3))
    for name in ("module:pred_logits", "module:pred_boxes", "module:queries"):
        told[name] = told[name][:, order]
    torch.testing.assert_close(module(batch)["loss"], before["loss"])
    told["module:pred_logits"] = told["module:pred_logits"].flip(-1)  # but not of another teacher
    assert (module(batch)["loss"] - before["loss"]).abs() > 1e-3


def test_what_is_said_of_the_teacher_must_be_its_files(file):
    spec = spec_of(file, ("pred_logits", "L2", 1.0))
    assert check(spec) == [] and list(teacher_file_problems(spec)) == []
    wrong = spec_of(file, ("pred_logits", "L2", 1.0), backbone="resnet_50", num_queries=900, enc_layers=6)
    assert {p.where: p.message for p in teacher_file_problems(wrong)} == {
        "distill.teacher[0].model.backbone.type": "the teacher's file contains a resnet10t, not resnet_50",
        "distill.teacher[0].model.detector.options.num_queries": "the teacher's file was made with 10, not 900",
        "distill.teacher[0].model.detector.options.encoder_layers": "the teacher's file was made with 1, not 6",
    }
