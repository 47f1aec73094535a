"""Products of bf16 tensors: fp32 arithmetic, one rounding."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.training.engine.cpu_bf16 import CpuBf16


def operand(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed + len(shape))).bfloat16()


X, W, B = operand(4, 9), operand(5, 9, seed=1), operand(5, seed=2)
IMAGES, KERNEL = operand(2, 3, 8, 8), operand(6, 3, 3, 3, seed=1)
Q, K, V = (operand(2, 2, 7, 4, seed=s) for s in (3, 4, 5))
CASES = {
    "linear": (lambda x, w, b: F.linear(x, w, b), (X, W, B)),
    "linear by name": (lambda x, w: F.linear(input=x, weight=w), (X, W)),
    "conv2d": (lambda x, k: F.conv2d(x, k, stride=2, padding=1), (IMAGES, KERNEL)),
    "attention": (F.scaled_dot_product_attention, (Q, K, V)),
    "masked attention": (
        lambda q, k, v: F.scaled_dot_product_attention(q, k, v, attn_mask=torch.ones(7, 7, dtype=torch.bool).tril()),
        (Q, K, V),
    ),
    "@": (lambda a, b: a @ b, (X, W.T)),
    "matmul": (torch.matmul, (X, W.T)),
    "bmm": (torch.bmm, (Q.flatten(0, 1), K.flatten(0, 1).transpose(1, 2))),
}


@pytest.mark.parametrize("name", CASES)
def test_forward_is_fp32_rounded_once(name):
    function, operands = CASES[name]
    with CpuBf16():
        found = function(*operands)
    expected = function(*(o.float() for o in operands))
    assert found.dtype is torch.bfloat16 and torch.equal(found, expected.bfloat16())


@pytest.mark.parametrize("name", CASES)
def test_gradients_are_those_of_fp32_rounded_once(name):
    function, operands = CASES[name]
    low = [o.clone().requires_grad_() for o in operands]
    high = [o.float().requires_grad_() for o in operands]
    with CpuBf16():
        found = function(*low)
    upstream = operand(*found.shape, seed=7)
    found.backward(upstream)
    function(*high).backward(upstream.float())
    for a, b in zip(low, high, strict=True):
        assert a.grad.dtype is torch.bfloat16 and torch.equal(a.grad, b.grad.bfloat16())


def test_other_operations_and_dtypes_are_left_alone():
    with CpuBf16():
        assert F.linear(X.float(), W.float()).dtype is torch.float32
        assert torch.equal(F.gelu(X), F.gelu(X)) and (X + X).dtype is torch.bfloat16
    assert torch.equal(X + X, 2 * X)


@pytest.mark.parametrize(
    "architecture",
    [
        StudentArchitecture(
            "c_radio_v3_vit_base_patch16_reg4_dinov2",
            dict(embed_dim=32, depth=2, num_heads=2, patch_size=8),
            img_size=32,
        ),
        StudentArchitecture("test_convnext", img_size=32),
    ],
    ids=["vit", "cnn"],
)
def test_a_students_gradients_stay_close_to_fp32(architecture):
    torch.manual_seed(0)
    student = Student(architecture).eval()
    images = torch.rand(2, 3, 32, 32)

    def gradient(dtype: torch.dtype) -> torch.Tensor:
        student.zero_grad()
        student.to(dtype)
        with CpuBf16():
            features = student(images)
        assert features.summary.dtype is dtype
        (features.summary.float().square().mean() + features.spatial.float().square().mean()).backward()
        gradients = [p.grad.float().flatten() for p in student.parameters() if p.grad is not None]
        return torch.cat(gradients)

    exact, rounded = gradient(torch.float32), gradient(torch.bfloat16)
    assert torch.isfinite(rounded).all()
    assert F.cosine_similarity(exact, rounded, dim=0) > 0.99
    assert 0.95 < rounded.norm() / exact.norm() < 1.05
