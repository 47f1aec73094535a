"""Detectors with fewer channels in their backbones: they run, say what the same masked weights say, and are built
again from their files."""

from __future__ import annotations

import pytest
import torch

from radioplat.compression.cost import cost_of
from radioplat.compression.pruning.prune import Cuts, prune_model
from radioplat.compression.pruning.scores import ChannelScore
from radioplat.errors import SpecError
from radioplat.models.detectors.base import Detector, DetectorArchitecture
from radioplat.models.detectors.checkpoint import load_detector, save_detector
from radioplat.models.student.student import StudentArchitecture
from radioplat.spec.schema.prune import PruneConfig, PrunePart

pytest.importorskip("transformers")

SIZE = 64
SMALL = dict(
    d_model=16, encoder_ffn_dim=16, decoder_ffn_dim=16, decoder_layers=1, num_queries=12, encoder_attention_heads=2,
    decoder_attention_heads=2, num_denoising=4,
)  # fmt: skip
OPTIONS = {
    "rtdetr_v2": SMALL | dict(encoder_hidden_dim=16, hidden_expansion=0.5, decoder_layers=2),
    "dino": SMALL | dict(encoder_layers=1, num_feature_levels=4),  # the fourth reads the last map too
}
RESNET = StudentArchitecture("resnet10t", img_size=SIZE)
VIT = StudentArchitecture("vit_tiny_patch16_224", {"depth": 1, "embed_dim": 48, "num_heads": 3}, img_size=SIZE)
EVERYWHERE = [PrunePart.hidden, PrunePart.width]


def pruned(detector: Detector, config: PruneConfig) -> tuple[Detector, Cuts]:
    return prune_model(detector, config, ChannelScore(config))


def made(kind: str, student: StudentArchitecture) -> Detector:
    """Seeded, with statistics as training leaves them."""
    torch.manual_seed(0)
    detector = Detector(DetectorArchitecture(student, 3, kind, OPTIONS[kind])).eval()
    for module in detector.modules():
        if isinstance(module, torch.nn.BatchNorm2d):
            module.running_mean.uniform_(-0.1, 0.1)
            module.running_var.uniform_(0.8, 1.2)
            torch.nn.init.uniform_(module.weight, 0.5, 1.5)
    return detector


def said(detector: Detector) -> torch.Tensor:
    """Of two images of noise."""
    images = torch.randint(0, 256, (2, 3, SIZE, SIZE), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        output = detector(images)
    return torch.cat([output.logits, output.pred_boxes], -1)


@pytest.mark.parametrize(
    ("kind", "student", "parts"),
    [
        ("rtdetr_v2", RESNET, EVERYWHERE),
        ("rtdetr_v2", VIT, None),
        ("dino", RESNET, EVERYWHERE),
        ("dino", RESNET, None),
    ],
    ids=["rtdetr", "vit", "dino", "dino_hidden"],
)
def test_what_is_left_runs_trains_and_comes_back_from_its_file(kind, student, parts, tmp_path):
    detector = made(kind, student)
    before = {name: tensor.clone() for name, tensor in detector.state_dict().items()}
    small, cuts = pruned(detector, PruneConfig(amount=0.5, parts=parts))
    assert all(torch.equal(before[name], tensor) for name, tensor in detector.state_dict().items())
    costs = [cost_of(each.student.backbone, SIZE) for each in (detector, small)]
    assert costs[1].params < 0.9 * costs[0].params and costs[1].macs < 0.9 * costs[0].macs
    assert cuts.sizes and all(len(gone) > 0 for gone in cuts.units)
    narrower = parts is EVERYWHERE
    assert (small.pyramid.channels[-1] == detector.pyramid.channels[-1] // 2) is narrower
    assert small.detr.config.d_model == 16
    save_detector(small, tmp_path)
    again = load_detector(tmp_path)
    assert again.architecture == small.architecture and torch.equal(said(again), said(small))
    targets = [{"boxes": torch.tensor([[0.5, 0.5, 0.2, 0.3]]), "class_labels": torch.tensor([1])}]
    images = torch.randint(0, 256, (1, 3, SIZE, SIZE), dtype=torch.uint8)
    sum(small.train().outputs(images, targets).losses.values()).backward()
    assert all(p.grad is not None for p in small.student.backbone.parameters())


@pytest.mark.parametrize("kind", ["rtdetr_v2", "dino"])
def test_channels_that_say_nothing_go_and_nothing_changes(kind):
    """Half of the channels of every group are made zero: those are the least worthy, and what is said stays."""
    detector = made(kind, RESNET)
    with torch.no_grad():
        for module in detector.student.backbone.modules():
            if isinstance(module, torch.nn.BatchNorm2d):
                for tensor in (module.weight, module.bias, module.running_mean):
                    tensor[::2] = 0
                module.running_var[::2] = 1
            elif isinstance(module, torch.nn.Conv2d):
                module.weight[::2] = 0
                if module.in_channels > 3:
                    module.weight[:, ::2] = 0
        for project in detector.detr.input_proj if kind == "dino" else detector.detr.model.encoder_input_proj:
            if project[0].in_channels > 16:
                project[0].weight[:, ::2] = 0
    small, cuts = pruned(detector, PruneConfig(amount=0.5, granularity=1, parts=EVERYWHERE))
    assert all(gone == list(range(0, size, 2)) for gone, size in zip(cuts.units, cuts.sizes.values(), strict=True))
    assert torch.allclose(said(small), said(detector), atol=1e-5)


def test_what_cannot_be_pruned_is_named():
    with pytest.raises(SpecError, match="prune.parts: the pyramid of a plain ViT"):
        pruned(made("rtdetr_v2", VIT), PruneConfig(parts=[PrunePart.width]))
    with pytest.raises(SpecError, match=r"prune.exclude\[0\]: no layer of the backbone"):
        pruned(made("rtdetr_v2", RESNET), PruneConfig(exclude=["nothing"]))
