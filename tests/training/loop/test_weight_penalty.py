"""The penalty by its formula, its gradient, and its place in the loss."""

from __future__ import annotations

import pytest
import torch

from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.objectives.distill import ClassifyObjective, MicroBatch
from radioplat.spec.schema.train import OptimConfig, RegularizerConfig, TrainConfig
from radioplat.training.loop.weight_penalty import regularize

ARCHITECTURE = StudentArchitecture(
    "c_radio_v3_vit_base_patch16_reg4_dinov2",
    dict(embed_dim=16, depth=1, num_heads=2, patch_size=8),
    img_size=32,
    num_classes=3,
)
BATCH = MicroBatch(
    {"32": torch.randint(0, 256, (4, 3, 32, 32), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))},
    torch.ones(4),
    torch.tensor([0, 1, 2, -1]),
)


def module_with(kind: str | None, weight: float, skip: list[str] | None = None) -> ClassifyObjective:
    torch.manual_seed(0)
    module = ClassifyObjective(Student(ARCHITECTURE), "32").eval()
    module.student.backbone.blocks[0].attn.requires_grad_(False)
    optim = OptimConfig(skip_names=skip or [])
    regularize(module, TrainConfig(regularizer=RegularizerConfig(kind, weight), optim=optim))
    return module


def penalised(module: ClassifyObjective, skip: str = "-") -> dict[str, torch.Tensor]:
    return {
        name: p
        for name, p in module.named_parameters()
        if p.requires_grad and p.ndim > 1 and "pos_embed" not in name and "cls_token" not in name and skip not in name
    }


@pytest.mark.parametrize(("kind", "power"), [("L1", 1), ("l1", 1), ("L2", 2), ("l2", 2)])
def test_formula_and_place(kind, power):
    module, plain = module_with(kind, 0.01), module_with(None, 0.0)
    losses, without = module(BATCH), plain(BATCH)
    expected = 0.01 * sum(float(p.detach().double().abs().pow(power).sum()) for p in penalised(module).values())
    assert float(losses["loss/regularizer"]) == pytest.approx(expected, rel=1e-5)
    assert float(losses["loss"]) == pytest.approx(float(without["loss"]) + expected, rel=1e-5)
    assert float(losses["accuracy"]) == float(without["accuracy"]) and set(without) == {"loss", "accuracy"}


@pytest.mark.parametrize("power", [1, 2])
def test_gradient(power):
    module, plain = module_with(f"L{power}", 0.01), module_with(None, 0.0)
    for it in (module, plain):
        it(BATCH)["loss"].backward()
    others = dict(plain.named_parameters())
    mine = penalised(module)
    assert "student.classifier.weight" in mine and not any(".attn." in name for name in mine)
    for name, p in module.named_parameters():
        if p.grad is None:
            assert others[name].grad is None
            continue
        slope = (p.detach().sign() if power == 1 else 2 * p.detach()) * 0.01 if name in mine else 0.0
        torch.testing.assert_close(p.grad, others[name].grad + slope)


def test_skipped_names_are_not_penalised():
    module = module_with("L2", 1.0, ["classifier"])
    expected = sum(float(p.detach().square().sum()) for p in penalised(module, "classifier").values())
    assert float(module(BATCH)["loss/regularizer"]) == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize(("kind", "weight"), [(None, 0.0), ("L2", 0.0)])
def test_no_penalty(kind, weight):
    assert "loss/regularizer" not in module_with(kind, weight)(BATCH)
