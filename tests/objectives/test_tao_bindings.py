"""``distill.binding_form: tao`` against TAO's formulas on the same outputs."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from radioplat.errors import SpecError
from radioplat.losses.weighting.iou_mask import tao_object_mask
from radioplat.models.capture import captured
from radioplat.models.detectors.base import Detector, DetectorArchitecture
from radioplat.models.detectors.checkpoint import save_detector
from radioplat.models.student.student import StudentArchitecture
from radioplat.objectives.detect import DetectObjective
from radioplat.objectives.detector_bindings import binding_widths
from radioplat.objectives.distill import MicroBatch
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.teacher import resolve_teachers
from radioplat.spec.resolved.terms import MODULE
from radioplat.teachers.base.teacher import FrozenTeacher, describe

pytest.importorskip("transformers")

OPTIONS = dict(
    d_model=16, encoder_hidden_dim=16, encoder_ffn_dim=16, decoder_ffn_dim=16, decoder_layers=1, num_queries=8,
    encoder_attention_heads=2, decoder_attention_heads=2, num_denoising=0, hidden_expansion=0.5,
)  # fmt: skip
BOXES = torch.tensor([[[4, 4, 30, 40, 1, 0.0]], [[0, 0, 0, 0, -1, 0]]])  # the second image has no object
TRUTH = [torch.tensor([[17, 22, 26, 36]]) / 64, torch.zeros(0, 4)]
MAP = "detr.model.encoder_input_proj.1"
PROPOSALS = ("proposal_logits", "proposal_boxes", "proposal_queries")


def detector(seed: int, **options) -> Detector:
    torch.manual_seed(seed)
    student = StudentArchitecture("resnet10t", {"channels": (16, 24, 32, 48)}, img_size=64)
    kind = options.pop("kind", "rtdetr")
    options = OPTIONS | options if kind == "rtdetr" else {"d_model": 32, "num_queries": 8}
    return Detector(DetectorArchitecture(student, 3, kind, options)).eval()


def taught(folder, name: str, criterion: str, **options):
    """Return the loss of a binding of ``name``, the teacher's outputs as they are sent, and the student's."""
    student = detector(0)
    save_detector(detector(1, **options), folder)
    binding = {"teacher_module_name": name, "student_module_name": name, "criterion": criterion}
    spec = load_spec(
        {
            "compat": "tao",
            "model": {"task": "detection"},
            "dataset": {"img_size": 64},
            "distill": {"teacher": {"pretrained_teacher_model_path": str(folder)}, "bindings": [binding]},
        }
    )
    (teacher,) = resolve_teachers(spec)
    widths = binding_widths(student, [teacher], {teacher.name: describe(teacher)}, 64)
    module = DetectObjective(student, "64", [teacher], widths, spec.distill).eval()
    images = torch.randint(0, 256, (2, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(2))
    answer = FrozenTeacher(teacher).forward(images, teacher.wanted)
    batch = MicroBatch({"64": images}, torch.ones(2), torch.full((2,), -1), {teacher.name: answer}, boxes=BOXES)
    with torch.no_grad():
        loss = module(batch)[f"loss/{teacher.name}/binding_0"]
        with captured(student, [name]) as mine:
            student.outputs(images)
    theirs = {key.removeprefix(MODULE): value.float() for key, value in answer.named.items()}
    return loss, theirs, mine[name].float()


def test_class_scores_are_compared_in_order_by_softmax(tmp_path):
    loss, theirs, mine = taught(tmp_path, "pred_logits", "KL")
    teacher, student = theirs["pred_logits"].log_softmax(-1), mine.log_softmax(-1)
    torch.testing.assert_close(loss, F.kl_div(student, teacher, log_target=True, reduction="none").mean())


def test_boxes_are_compared_in_order_and_weigh_the_same(tmp_path):
    loss, theirs, mine = taught(tmp_path, "pred_boxes", "L1")
    torch.testing.assert_close(loss, F.l1_loss(mine, theirs["pred_boxes"]))


def test_unlike_numbers_of_queries_are_refused(tmp_path):
    with pytest.raises(SpecError, match="8 queries of the student against 10 of the teacher"):
        taught(tmp_path, "pred_logits", "KL", num_queries=10)


def test_a_dino_has_no_proposals_for_iou(tmp_path):
    with pytest.raises(SpecError, match="IOU as in TAO needs proposal_queries of the teacher"):
        taught(tmp_path, "srcs.1", "IOU", kind="dino")


def test_iou_is_the_mean_over_all_positions_of_weighted_maps(tmp_path):
    loss, theirs, mine = taught(tmp_path, MAP, "IOU")
    teacher, student = theirs[MAP], mine.permute(0, 2, 3, 1)
    weights = tao_object_mask(*(theirs[name] for name in PROPOSALS), teacher, TRUTH, (64, 64))
    torch.testing.assert_close(loss, F.mse_loss(weights[..., None] * student, weights[..., None] * teacher))
    assert weights[1].min() < 0.5  # of the image without objects


def test_proposals_are_those_that_the_decoder_reads():
    """transformers gives the decoder their features as its first input."""
    model = detector(3)
    images = torch.randint(0, 256, (1, 3, 64, 64), dtype=torch.uint8)
    read: list[torch.Tensor] = []
    hook = lambda module, args, kwargs: read.append(kwargs["inputs_embeds"])  # noqa: E731
    handle = model.detr.model.decoder.register_forward_pre_hook(hook, with_kwargs=True)
    with captured(model, PROPOSALS) as proposals, torch.no_grad():
        model.outputs(images)
    handle.remove()
    torch.testing.assert_close(proposals["proposal_queries"], read[0])
