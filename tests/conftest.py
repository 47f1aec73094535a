"""A student that several rooms need."""

from __future__ import annotations

import pytest


@pytest.fixture
def radio_student():
    """radio_student(**changes) -> a student, by default a RADIO ViT of 32 numbers a token with three teachers.

    Every parameter is drawn, so that nothing is 0 or 1 by chance, and every head has a mean and a scale. The third
    teacher reads the third class token, the second has no summary.
    """
    import torch

    from radioplat.models.heads import HeadArchitecture
    from radioplat.models.student import Student, StudentArchitecture

    heads = (
        HeadArchitecture("clip", summary_dim=12, spatial_dim=10, hidden=16, num_inner=2),
        HeadArchitecture("sam", spatial_dim=8, token_slot=1, hidden=24),
        HeadArchitecture("dino", summary_dim=20, spatial_dim=20, token_slot=2, hidden=16, num_inner=1),
    )
    usual = dict(
        type="radio_vit_tiny_patch8",
        kwargs={"embed_dim": 32, "depth": 2, "num_heads": 2},
        num_class_tokens=3,
        num_registers=5,
        cpe_max_size=64,
        img_size=48,
        mean=(0.4, 0.5, 0.6),
        std=(0.2, 0.3, 0.4),
        heads=heads,
    )

    def make(seed: int = 0, **changes) -> Student:
        torch.manual_seed(seed)
        student = Student(StudentArchitecture(**{**usual, **changes})).eval()
        with torch.no_grad():
            for parameter in student.parameters():
                parameter.add_(0.1 * torch.randn_like(parameter))
            for name, buffer in student.named_buffers():
                if name.startswith("heads.") and name.endswith("_mean"):
                    buffer.copy_(3 * torch.randn_like(buffer))
                elif name.startswith("heads.") and name.endswith("_scale"):
                    buffer.fill_(2.5)
        return student

    return make


@pytest.fixture
def image_batch():
    """image_batch(height, width) -> two images, floats in [0, 1]."""
    import torch

    def make(height: int = 48, width: int = 48) -> torch.Tensor:
        return torch.rand(2, 3, height, width, generator=torch.Generator().manual_seed(1))

    return make
