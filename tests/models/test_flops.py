"""Counted operations of forward passes are those of the closed forms."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from radioplat.design.student import build_on_meta
from radioplat.models.flops import forward_flops
from radioplat.models.student.student import StudentArchitecture

WANTED = frozenset({"summary", "spatial"})


def of_vit(width: int, depth: int, patches: int, tokens: int, patch: int) -> int:
    """2 for each multiplication and addition: patches, and in each block 12 width^2 a token, and attention."""
    blocks = depth * (2 * tokens * 12 * width**2 + 4 * tokens**2 * width)
    return 2 * patches * 3 * patch**2 * width + blocks


@pytest.mark.parametrize(("size", "giga"), [(224, 35.1), (384, 111.0)])
def test_of_a_vit_b(size, giga):
    """17.6 and 55.5 G multiply-adds, as timm's tables say."""
    student = build_on_meta(StudentArchitecture("vit_base_patch16_224", img_size=size)).eval()
    counted = forward_flops(student, lambda images: student.backbone(images, WANTED), size)
    patches = (size // 16) ** 2
    assert counted == of_vit(768, 12, patches, patches + 1, 16)
    assert counted / 1e9 == pytest.approx(giga, abs=0.1)


def test_of_real_modules_on_a_cpu():
    layer = nn.Conv2d(3, 8, 2, 2)
    assert forward_flops(layer, layer, 16, "cpu") == 2 * (3 * 2 * 2) * 8 * 8 * 8
    assert not any(parameter.requires_grad for parameter in layer.parameters())
    assert torch.get_default_device().type == "cpu"
