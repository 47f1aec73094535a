"""Two small real students, a ViT with a class token and a convolutional net with BatchNorm, and their ONNX files."""

from __future__ import annotations

import pytest
import timm
import torch
from torch import Tensor, nn

from radioplat.exporting.onnx import publish
from radioplat.exporting.onnx.export import OnnxReport, export_onnx
from radioplat.models.features import Features

SIZE = 48


class Student(nn.Module):
    """A timm backbone, normalisation inside, and a LayerNorm-GELU head per teacher; ``alpha`` has no map, as CLIP's."""

    def __init__(self, name: str, **kwargs) -> None:
        super().__init__()
        self.backbone = timm.create_model(name, num_classes=0, **kwargs)
        self.register_buffer("mean", torch.tensor([0.485, 0.456, 0.406]).view(1, 3, 1, 1))
        self.register_buffer("std", torch.tensor([0.229, 0.224, 0.225]).view(1, 3, 1, 1))
        width = self.backbone.num_features
        self.heads = nn.ModuleDict({name: _head(width, 24) for name in ("alpha", "beta")})

    @property
    def head_names(self) -> list[str]:
        return list(self.heads)

    def forward(self, images: Tensor) -> Features:
        found = self.backbone.forward_features((images - self.mean) / self.std)
        if found.ndim == 4:
            spatial = found.permute(0, 2, 3, 1)
            return Features(spatial.mean((1, 2)), spatial)
        tokens = found[:, self.backbone.num_prefix_tokens :]
        h, w = (side // 16 for side in images.shape[-2:])
        return Features(found[:, 0], tokens.reshape(tokens.shape[0], h, w, -1))

    def head(self, name: str, features: Features) -> Features:
        head = self.heads[name]
        return Features(head(features.summary), None if name == "alpha" else head(features.spatial))


def _head(width: int, out: int) -> nn.Module:
    return nn.Sequential(nn.Linear(width, 32), nn.LayerNorm(32), nn.GELU(), nn.Linear(32, out))


@pytest.fixture(scope="session")
def vit() -> Student:
    """Attention, GELU, LayerNorm, a class token and a position table."""
    torch.manual_seed(0)
    return Student("test_vit", img_size=SIZE, depth=2).eval()


@pytest.fixture(scope="session")
def conv() -> Student:
    """Convolutions, SiLU, and BatchNorm whose running statistics are not those of a fresh net."""
    torch.manual_seed(0)
    student = Student("test_efficientnet").train()
    with torch.no_grad():
        for _ in range(3):
            student(torch.rand(4, 3, SIZE, SIZE))
    return student.eval()


@pytest.fixture(scope="session")
def folder(tmp_path_factory):
    """Where the session's exports lie; tests read them and write elsewhere."""
    return tmp_path_factory.mktemp("onnx")


@pytest.fixture(scope="session")
def vit_fp32(vit, folder) -> OnnxReport:
    """The ViT with both heads, fp32, dynamic batch."""
    return export_onnx(vit, folder / "vit.onnx", height=SIZE, width=SIZE, adaptors=["beta", "alpha"])


@pytest.fixture(scope="session")
def vit_fp16(vit, folder) -> OnnxReport:
    """The ViT with one head, fp16, batch fixed at 2."""
    return export_onnx(
        vit, folder / "vit16.onnx", height=SIZE, width=SIZE, batch_size=2, adaptors=["alpha"], data_type="fp16"
    )


@pytest.fixture(scope="session")
def conv_bf16(conv, folder) -> OnnxReport:
    """The convolutional net with one head, bf16, dynamic batch, weights in a file beside it."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(publish, "ONE_FILE_BYTES", 0)
        return export_onnx(conv, folder / "conv.onnx", height=SIZE, width=SIZE, adaptors=["beta"], data_type="bf16")
