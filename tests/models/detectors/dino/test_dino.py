"""DINO on a student's backbone: its queries, what gradients reach, noised boxes, losses, and its file."""

from __future__ import annotations

from itertools import permutations

import pytest
import torch
from torchvision.ops import box_convert, generalized_box_iou_loss, sigmoid_focal_loss

pytest.importorskip("transformers")

from radioplat.errors import SpecError
from radioplat.models.detectors.base import Detector, DetectorArchitecture, detector_on
from radioplat.models.detectors.checkpoint import load_detector, save_detector
from radioplat.models.detectors.dino.dino import OPTIONS, level_shapes
from radioplat.models.student.student import StudentArchitecture

SMALL = dict(
    d_model=32, num_queries=20, num_feature_levels=3, encoder_layers=1, decoder_layers=3, encoder_ffn_dim=32,
    decoder_ffn_dim=32, encoder_attention_heads=2, decoder_attention_heads=2, num_denoising=5,
)  # fmt: skip
VIT = StudentArchitecture("vit_tiny_patch16_224", {"depth": 1}, img_size=64)


def target(boxes=(), labels=()):
    return {"boxes": torch.tensor(boxes).reshape(-1, 4).float(), "class_labels": torch.tensor(labels).long()}


TARGETS = [target([[0.3, 0.3, 0.2, 0.4], [0.7, 0.5, 0.3, 0.3]], [0, 2]), target()]


def dino(student=VIT, seed=0, **options):
    torch.manual_seed(seed)
    detector = Detector(DetectorArchitecture(student, 3, "dino", SMALL | options))
    with torch.no_grad():  # boxes that move: zeros at the start hide what reaches what
        for head in (detector.detr.enc_bbox_head, *detector.detr.decoder.bbox_embed):
            head.layers[-1].weight.normal_(std=0.2)
    return detector


@pytest.fixture(scope="module")
def images():
    return torch.randint(0, 256, (2, 3, 64, 96), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("share", [True, False])
@pytest.mark.parametrize("levels", [3, 5])
def test_it_learns_from_boxes_and_from_empty_images(images, levels, share):
    detector = dino(num_feature_levels=levels, share_heads=share).train()
    output = detector.outputs(images, TARGETS)
    layers = ("", "_aux_0", "_aux_1", "_enc", "_dn_0", "_dn_1", "_dn_2")
    assert set(output.losses) == {f"loss_{of}{layer}" for of in ("ce", "bbox", "giou") for layer in layers}
    sum(output.losses.values()).backward()
    assert [n for n, p in detector.named_parameters() if p.grad is None] == []
    assert next(detector.student.backbone.parameters()).grad.abs().max() > 0
    detector.zero_grad()
    empty = detector.outputs(images, [target(), target()])
    loss = sum(empty.losses.values())
    assert loss.isfinite() and empty.losses["loss_bbox"] == 0
    loss.backward()
    assert [n for n, p in detector.named_parameters() if p.grad is None] == []  # as on a rank that has objects


def test_queries_are_the_surest_positions_with_learned_contents(images):
    detector = dino().eval()
    seen = {}

    def first(layer, arguments, keywords):
        seen.update(content=arguments[0], boxes=keywords["reference_points"][:, :, 0])

    detector.detr.decoder.layers[0].register_forward_pre_hook(first, with_kwargs=True)
    scores = {}
    detector.detr.enc_score_head.register_forward_hook(lambda m, i, o: scores.update(all=o))
    output = detector(images)
    learned = detector.detr.query_content.weight
    assert torch.equal(seen["content"], learned.expand(2, -1, -1))  # the same in every image
    assert torch.equal(seen["boxes"], output.init_reference_points)
    assert not torch.allclose(seen["boxes"][0], seen["boxes"][1])  # where they are is the image's
    best = scores["all"].amax(-1).sort(1, descending=True).indices[:, :20]
    points = []  # centres of all positions, level by level; a box starts around its own
    for height, width in level_shapes(detector.detr, [(8, 12), (4, 6), (2, 3)]):
        y, x = torch.meshgrid((torch.arange(height) + 0.5) / height, (torch.arange(width) + 0.5) / width, indexing="ij")
        points.append(torch.stack([x, y], -1).flatten(0, 1))
    points = torch.cat(points)
    assert len(points) == scores["all"].shape[1]
    with torch.no_grad():
        for layer in detector.detr.enc_bbox_head.layers:
            layer.weight.zero_(), layer.bias.zero_()
    still = detector(images).init_reference_points[..., :2]
    torch.testing.assert_close(still, points[best])


def test_a_layer_teaches_the_boxes_of_the_one_before_and_none_further_back(images):
    detector = dino(share_heads=False).eval()
    heads = [head.layers[-1].weight for head in detector.detr.decoder.bbox_embed]
    tokens = detector.detr._tokens(detector.maps(images))
    memory = detector.detr._encode(tokens)
    start = torch.randn(2, 20, 4, generator=torch.Generator().manual_seed(1))
    content = detector.detr.query_content.weight.expand(2, -1, -1)
    _, _, boxes = detector.detr._decode(content, start, memory, tokens, None)
    reached = []
    for said in boxes:
        gradients = torch.autograd.grad(said.sum(), heads, retain_graph=True, allow_unused=True)
        reached.append([g is not None and bool(g.abs().max() > 0) for g in gradients])
    assert reached == [[True, False, False], [True, True, False], [False, True, True]]


def test_queries_see_nothing_of_noised_boxes(images):
    """The same answers, in training, whatever stands before them; noised boxes do change what they are told."""
    with torch.no_grad():
        said = [dino(num_denoising=n).train()(images, TARGETS) for n in (0, 5, 40)]
    for other in said[1:]:
        torch.testing.assert_close(other.logits, said[0].logits, rtol=1e-4, atol=1e-5)
        torch.testing.assert_close(other.pred_boxes, said[0].pred_boxes, rtol=1e-4, atol=1e-5)
        assert torch.isclose(other.loss_dict["loss_bbox"], said[0].loss_dict["loss_bbox"], rtol=1e-4)
    assert "loss_ce_dn_0" not in said[0].loss_dict and "loss_ce_dn_0" in said[1].loss_dict


def test_like_boxes_are_to_be_restored_and_unlike_ones_to_be_nothing(images):
    """Of the first half of each group the boxes count, and of the second only that they are no object."""
    detector = dino(num_denoising=4, label_noise_ratio=0.0).train()
    kept = {}
    detector.detr.loss.register_forward_pre_hook(lambda m, arguments: kept.update(a=arguments))
    with torch.no_grad():
        output = detector(images, TARGETS)
    _, _, (logits, boxes), noised, _ = kept["a"]
    truth, groups = TARGETS[0]["boxes"], 2  # 4 noised boxes for 2 objects
    assert logits.shape == (3, 2, 2 * groups * 2, 3) and noised["dn_num_group"] == groups
    mine = boxes[0, 0].reshape(groups, 2, 2, 4)[:, 0]  # group, like or unlike, object
    expected = 5 * (mine - truth).abs().sum() / (2 * groups)
    torch.testing.assert_close(output.loss_dict["loss_bbox_dn_0"], expected)
    aim = torch.zeros(2, 2 * groups * 2, 3)
    aim[0].reshape(groups, 2, 2, 3)[:, 0] = torch.eye(3)[TARGETS[0]["class_labels"]]
    focal = sigmoid_focal_loss(logits[0], aim, alpha=0.25, gamma=2, reduction="sum") / (2 * groups)
    torch.testing.assert_close(output.loss_dict["loss_ce_dn_0"], focal)


def test_losses_are_those_of_the_best_matching(images):
    """Against torchvision's formulas, over every way to match two objects with 20 queries."""
    detector = dino().eval()
    with torch.no_grad():
        output = detector(images, TARGETS)
    logits, boxes, truth = output.logits[0], output.pred_boxes[0], TARGETS[0]
    corners = [box_convert(b, "cxcywh", "xyxy") for b in (boxes, truth["boxes"])]

    def cost(query, thing):
        p = logits[query, truth["class_labels"][thing]].sigmoid()
        focal = 0.25 * (1 - p) ** 2 * -p.log() - 0.75 * p**2 * -(1 - p).log()
        l1 = (boxes[query] - truth["boxes"][thing]).abs().sum()
        giou = 1 - generalized_box_iou_loss(corners[0][query], corners[1][thing])
        return float(2 * focal + 5 * l1 - 2 * giou)

    costs = [[cost(q, t) for t in range(2)] for q in range(20)]
    best = min(permutations(range(20), 2), key=lambda pair: costs[pair[0]][0] + costs[pair[1]][1])
    chosen, losses = list(best), output.loss_dict
    l1 = (boxes[chosen] - truth["boxes"]).abs().sum() / 2
    giou = generalized_box_iou_loss(corners[0][chosen], corners[1], reduction="sum") / 2
    aim = torch.zeros(2, 20, 3)
    aim[0, chosen] = torch.eye(3)[truth["class_labels"]]
    focal = sigmoid_focal_loss(output.logits, aim, alpha=0.25, gamma=2, reduction="sum") / 2
    torch.testing.assert_close(losses["loss_bbox"], 5 * l1)
    torch.testing.assert_close(losses["loss_giou"], 2 * giou)
    torch.testing.assert_close(losses["loss_ce"], focal)
    torch.testing.assert_close(output.loss, sum(losses.values()))


def test_weights_of_losses_are_factors(images):
    changed = dict(class_loss_coefficient=3, bbox_loss_coefficient=7, giou_loss_coefficient=0.5)
    with torch.no_grad():
        plain, other = (dino(**o).eval()(images, TARGETS).loss_dict for o in ({}, changed))
        half = dino(encoder_loss_coefficient=0.5).eval()(images, TARGETS).loss_dict
    for name, factor in (("ce", 3), ("bbox", 7 / 5), ("giou", 0.25)):
        torch.testing.assert_close(other[f"loss_{name}_aux_1"], factor * plain[f"loss_{name}_aux_1"])
        torch.testing.assert_close(half[f"loss_{name}_enc"], 0.5 * plain[f"loss_{name}_enc"])
        assert torch.equal(half[f"loss_{name}"], plain[f"loss_{name}"])


@pytest.mark.proof
def test_it_learns_one_picture():
    """A red and a green square on grey: after 70 steps each class is surest about where its own is."""
    detector = dino(StudentArchitecture("resnet10t"), seed=2, decoder_layers=2)
    picture = torch.full((1, 3, 64, 64), 128, dtype=torch.uint8)
    picture[0, :, 8:24, 8:24] = torch.tensor([255, 0, 0], dtype=torch.uint8)[:, None, None]
    picture[0, :, 32:56, 32:56] = torch.tensor([0, 255, 0], dtype=torch.uint8)[:, None, None]
    truth = target([[0.25, 0.25, 0.25, 0.25], [0.6875, 0.6875, 0.375, 0.375]], [1, 2])
    optimizer = torch.optim.AdamW(detector.train().parameters(), 1e-3)
    losses = []
    for _ in range(70):
        loss = detector(picture, [truth]).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(detector.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 2.5
    with torch.no_grad():
        output = detector(picture)
    for box, label in zip(truth["boxes"], truth["class_labels"], strict=True):
        surest = output.pred_boxes[0, output.logits[0, :, label].argmax()]
        torch.testing.assert_close(surest, box, atol=0.08, rtol=0)


def test_it_computes_in_bf16_with_boxes_in_fp32(images):
    detector = dino().to(torch.bfloat16).train()
    output = detector(images, TARGETS)
    assert output.pred_boxes.dtype == output.logits.dtype == output.loss.dtype == torch.float32
    output.loss.backward()
    assert output.loss.isfinite()


def test_the_file_gives_the_same_detector(tmp_path, images, radio_student):
    torch.manual_seed(3)
    detector = detector_on(radio_student(), 3, "dino", **SMALL).eval()
    save_detector(detector, tmp_path / "d")
    again = load_detector(tmp_path / "d")
    assert again.architecture == detector.architecture and not again.training
    for a, b in zip(detector.detect(images, 5), again.detect(images, 5), strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a, b, strict=True))


def test_more_queries_than_positions_is_refused(images):
    detector = dino(num_feature_levels=4, num_queries=127, num_select=7).eval()
    assert [len(found.labels) for found in detector.detect(images)] == [7, 7]
    detector(images)  # 96 + 24 + 6, and 2 of the further level
    with pytest.raises(SpecError, match="127 queries are more than the 85 positions"):
        detector(images[..., :64])


@pytest.mark.parametrize(
    "change, says",
    [
        ({"num_querys": 3}, "num_querys"),
        ({"two_stage": False}, "two_stage"),
        ({"encoder_attention_heads": 5}, "encoder_attention_heads"),
        ({"decoder_attention_heads": 16}, "decoder_attention_heads"),
        ({"num_queries": 0}, "num_queries"),
        ({"num_feature_levels": 0}, "num_feature_levels"),
        ({"num_feature_levels": 2}, "num_feature_levels"),
        ({"box_noise_scale": 0}, "box_noise_scale"),
        ({"num_queries": "many"}, "num_queries"),
        ({"activation_function": "wish"}, "wish"),
    ],
)
def test_what_cannot_be_built_is_named(change, says):
    with pytest.raises(SpecError, match=says):
        dino(**change)


def test_every_option_is_an_argument():
    from radioplat.models.detectors.dino.dino import DinoConfig

    assert set(OPTIONS) <= set(DinoConfig.__dataclass_fields__)
