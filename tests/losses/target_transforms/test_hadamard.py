"""Hadamard matrices of every order that the constructions give."""

from __future__ import annotations

import hashlib

import numpy as np
import pytest
import scipy.linalg
from hypothesis import given, settings
from hypothesis import strategies as st

from radioplat.losses.target_transforms.hadamard import hadamard, has_hadamard, mixing_matrix

# Final widths of ViTs, RADIO, ConvNeXt, Swin, EfficientNet and ResNet in timm.
WIDTHS = [192, 256, 384, 512, 640, 768, 896, 1024, 1152, 1280, 1408, 1536, 1664, 1792, 2048, 2560, 3072, 4096]
SMALL = [order for order in (1, 2, *range(4, 129, 4)) if has_hadamard(order)]


def assert_hadamard(matrix: np.ndarray, order: int) -> None:
    wide = matrix.astype(np.float32)
    assert matrix.shape == (order, order) and set(np.unique(matrix)) <= {-1, 1}
    assert np.array_equal(wide @ wide.T, order * np.eye(order, dtype=np.float32))


@settings(deadline=None)
@given(st.sampled_from(SMALL))
def test_rows_are_orthogonal(order):
    assert_hadamard(hadamard(order), order)


@pytest.mark.parametrize(
    "order",
    [
        28,  # Paley I over GF(27)
        52,  # Paley II over GF(25)
        244,  # Paley I over GF(243)
        340,  # Paley II over GF(169)
        344,  # Paley I over GF(343)
    ],
)
def test_every_construction(order):
    assert_hadamard(hadamard(order), order)


@pytest.mark.parametrize("order", [w for w in WIDTHS if w <= 1664])
def test_widths_of_teachers(order):
    assert_hadamard(hadamard(order), order)


def test_all_widths_of_teachers_can_be_had():
    assert all(has_hadamard(width) for width in WIDTHS)
    assert hadamard(3072).shape == (3072, 3072) and hadamard(4096).shape == (4096, 4096)


def test_powers_of_two_are_sylvesters():
    for order in (1, 2, 8, 64):
        assert np.array_equal(hadamard(order), scipy.linalg.hadamard(order))


def test_most_orders_are_there():
    missing = [order for order in range(4, 201, 4) if not has_hadamard(order)]
    assert missing == [92, 116, 156, 172, 184, 188]
    assert not any(has_hadamard(order) for order in (0, -4, 3, 5, 6, 10, 771))
    assert sum(has_hadamard(order) for order in range(4, 4097, 4)) > 1024 * 2 / 3


def test_an_order_that_cannot_be_had():
    with pytest.raises(ValueError, match="order 188"):
        hadamard(188)


@pytest.mark.parametrize("order", [3, 7, 188, 12, 96])
def test_something_orthogonal_of_every_order(order):
    mix = mixing_matrix(order)
    assert np.allclose(mix @ mix.T, np.eye(order), atol=1e-12)
    if has_hadamard(order):
        assert np.allclose(np.abs(mix), order**-0.5)
    mixing_matrix.cache_clear()
    assert np.array_equal(mix, mixing_matrix(order)), "seeded"
    with pytest.raises(ValueError):
        mix[0, 0] = 2.0  # shared between callers


@pytest.mark.parametrize(
    ("order", "digest"),
    [
        (12, "db7478025ce74776"),  # Paley I
        (28, "3ec6c53133760a03"),  # Paley I, prime power
        (52, "f50db5d0f93762d3"),  # Paley II, prime power
        (192, "85bf89a37941f5a7"),
        (640, "0293c11dcf7ae8d3"),  # Kronecker product
        (1360, "7b3871c406bef71c"),  # RegNetX-4.0GF: Paley II over GF(169), doubled twice
    ],
)
def test_matrices_are_those_of_earlier_versions(order, digest):
    """A resumed run computes the matrix again: it must be the one that its heads were trained with."""
    assert hashlib.sha256(hadamard(order).tobytes()).hexdigest()[:16] == digest
