"""A detector's loss: the same however a step is cut, nothing of crowds and of samples without weight."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from radioplat.data.batch import Batch, View
from radioplat.models.detectors.base import Detector, DetectorArchitecture
from radioplat.models.student.student import StudentArchitecture
from radioplat.objectives.detect import DetectObjective, rows_shown, target_of
from radioplat.objectives.distill import MicroBatch
from radioplat.objectives.objective import StepContext

pytest.importorskip("transformers")

OPTIONS = dict(
    d_model=16, encoder_hidden_dim=16, encoder_ffn_dim=16, decoder_ffn_dim=16, decoder_layers=2, num_queries=8,
    encoder_attention_heads=2, decoder_attention_heads=2, num_denoising=4, hidden_expansion=0.5,
)  # fmt: skip
BOXES = torch.tensor(
    [
        [[4, 4, 20, 30, 1, 0], [30, 10, 60, 50, 0, 0], [0, 0, 64, 64, 2, 1]],
        [[8, 8, 40, 40, 2, 0], [0, 0, 0, 0, -1, 0], [0, 0, 0, 0, -1, 0]],
        [[0, 0, 0, 0, -1, 0]] * 3,
        [[10, 20, 30, 60, 0, 0], [5, 5, 25, 25, 1, 0], [0, 0, 0, 0, -1, 0]],
    ]
).float()


@pytest.fixture(scope="module")
def module():
    torch.manual_seed(0)
    detector = Detector(DetectorArchitecture(StudentArchitecture("resnet10t", img_size=64), 3, "rtdetr_v2", OPTIONS))
    return DetectObjective(detector, "64")


def micro(rows=(0, 1, 2, 3), weight=None):
    images = torch.randint(0, 256, (4, 3, 64, 64), dtype=torch.uint8, generator=torch.Generator().manual_seed(1))
    rows = list(rows)
    weights = torch.ones(len(rows)) if weight is None else torch.tensor(weight)
    return MicroBatch({"64": images[rows]}, weights, torch.full((len(rows),), -1), boxes=BOXES[rows])


def test_a_step_has_one_loss_however_it_is_cut(module):
    module.eval()  # BatchNorm and denoising look at a micro-batch as a whole
    rows, homography = np.arange(2), np.tile(np.eye(3, dtype=np.float32), (2, 1, 1))
    views = [View(np.zeros((2, 3, 64, 64), np.uint8), homography, boxes=BOXES.numpy()[i : i + 2]) for i in (0, 2)]
    batches = [Batch(0, {"64": view}, rows, rows, np.ones(2, np.float32), rows) for view in views]
    module.begin_step(StepContext(0, batches))
    assert module.boxes_per_image == 5 / 4
    whole = module(micro())
    for parts in (((0, 1), (2, 3)), ((0,), (1,), (2,), (3,))):
        cut = [module(micro(part)) for part in parts]
        for name, value in whole.items():
            torch.testing.assert_close(torch.stack([c[name] for c in cut]).mean(), value, rtol=2e-4, atol=1e-5)
    module.boxes_per_image = None
    torch.testing.assert_close(module(micro())["loss"], whole["loss"])  # a step of one micro-batch
    assert set(whole) == {"loss", "loss/vfl", "loss/bbox", "loss/giou"}


def test_what_has_no_weight_changes_nothing(module):
    module.eval()
    module.boxes_per_image = 1.0
    assert module(micro((1, 3)))["loss"] == module(micro((1, 0, 3), [1.0, 0.0, 1.0]))["loss"]
    assert module(micro((1, 0), [0.0, 0.0]))["loss"] == 0
    padding = MicroBatch(micro().views, torch.zeros(4), torch.full((4,), -1))
    assert module(padding)["loss"] == 0


def test_every_parameter_has_a_gradient_whatever_the_images_show(module):
    module.train()
    module.boxes_per_image = None
    found = []
    for batch in (micro(), micro((2,)), micro((0,), [0.0])):
        module.zero_grad(set_to_none=True)
        loss = module(batch)["loss"]
        assert loss.isfinite()
        loss.backward()
        found.append({name for name, p in module.named_parameters() if p.grad is not None})
    assert found[0] == found[1] == found[2]
    assert any("denoising" in name for name in found[0])


def test_targets_are_shares_of_the_view_without_crowds(module):
    target = target_of(BOXES[0], (64, 128))
    assert target["class_labels"].tolist() == [1, 0]
    torch.testing.assert_close(target["boxes"][0], torch.tensor([12 / 128, 17 / 64, 16 / 128, 26 / 64]))
    assert rows_shown(torch.tensor([0.0, 1, 0, 1]))[0].tolist() == [1, 3]
    rows, counted = rows_shown(torch.zeros(2))
    assert rows.tolist() == [0] and not counted
