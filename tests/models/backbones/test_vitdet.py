"""Windows against what they stand for: a block that sees each window alone."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from radioplat.models.backbones.radio_vit import RadioViT
from radioplat.models.backbones.vitdet import SIZES, Windows, design_windows, from_windows, global_layers, to_windows

TINY = dict(patch_size=4, embed_dim=16, depth=3, num_heads=2, num_class_tokens=2, num_registers=1, cpe_max_size=32)
P = 3  # tokens before the patches


@given(
    b=st.integers(1, 3),
    prefix=st.integers(0, 3),
    down=st.integers(1, 3),
    across=st.integers(1, 3),
    size=st.integers(1, 4),
)
def test_there_and_back(b, prefix, down, across, size):
    tokens = torch.randn(b, prefix + down * across * size**2, 2)
    windows = to_windows(tokens, prefix, down * size, across * size, size)
    assert windows.shape == (b * down * across, prefix + size**2, 2)
    torch.testing.assert_close(from_windows(windows, prefix, down * size, across * size, size), tokens)


def test_what_lies_where():
    rows, columns = torch.meshgrid(torch.arange(4), torch.arange(6), indexing="ij")
    tokens = torch.stack([rows, columns], dim=-1).reshape(1, 24, 2).float()
    windows = to_windows(torch.cat([torch.full((1, 1, 2), -1.0), tokens], dim=1), 1, 4, 6, 2)
    assert (windows[:, 0] == -1).all()
    assert windows[4, 1:].tolist() == [[2, 2], [2, 3], [3, 2], [3, 3]]  # second row of windows, second of three


def test_the_copies_of_the_prefix_are_averaged():
    windows = torch.zeros(4, 2, 1)
    windows[:, 0, 0] = torch.tensor([1.0, 3.0, 5.0, 9.0])
    assert from_windows(windows, 1, 1, 2, 1)[:, 0, 0].tolist() == [2.0, 7.0]


@pytest.fixture
def vit() -> RadioViT:
    torch.manual_seed(0)
    return RadioViT(**TINY)


def test_a_windowed_block_sees_each_window_alone(vit):
    vit.windows = Windows(1.0, (2,), frozenset({2}))
    rows, columns = 4, 6
    tokens = torch.randn(2, P + rows * columns, 16)
    places = torch.arange(rows * columns).reshape(rows, columns)
    expected, prefixes = tokens.clone(), []
    for top in range(0, rows, 2):
        for left in range(0, columns, 2):
            inside = P + places[top : top + 2, left : left + 2].flatten()
            alone = vit.blocks[1](vit.blocks[0](torch.cat([tokens[:, :P], tokens[:, inside]], dim=1)))
            expected[:, inside] = alone[:, P:]
            prefixes.append(alone[:, :P])
    expected[:, :P] = torch.stack(prefixes).mean(0)
    torch.testing.assert_close(vit._blocks(tokens, rows, columns, 2), vit.blocks[2](expected))
    assert not torch.allclose(vit._blocks(tokens, rows, columns, 0), vit.blocks[2](expected))


def test_one_window_is_the_whole_map(vit):
    vit.windows = Windows(1.0, (4,), frozenset({2}))
    tokens = torch.randn(2, P + 16, 16)
    torch.testing.assert_close(vit._blocks(tokens, 4, 4, 4), vit._blocks(tokens, 4, 4, 0))


def test_evaluation_is_always_global_and_training_is_not(vit):
    images, windows = torch.rand(2, 3, 16, 32), Windows(1.0, (2, 4), frozenset({2}))

    def spatial(mode: bool, given: Windows | None) -> torch.Tensor:
        vit.windows = given
        torch.manual_seed(3)
        if given is None:
            torch.rand(2)  # what a draw would have taken
        return vit.train(mode)(images).spatial

    assert torch.equal(spatial(False, windows), spatial(False, None))
    assert not torch.allclose(spatial(True, windows), spatial(True, None))
    never = Windows(0.0, (2, 4), frozenset({2}))
    assert torch.equal(spatial(True, never), spatial(True, None))
    assert torch.equal(spatial(True, windows), spatial(True, windows))  # keyed


@given(rows=st.integers(1, 70), columns=st.integers(1, 70), seed=st.integers(0, 2**30))
def test_only_what_divides_is_drawn(rows, columns, seed):
    windows = Windows(1.0, SIZES, frozenset())
    torch.manual_seed(seed)
    size = windows.draw(rows, columns)
    if any(rows % s == 0 and columns % s == 0 and s < max(rows, columns) for s in SIZES):
        assert size in SIZES and rows % size == 0 and columns % size == 0
    else:
        assert size == 0


def test_how_often_each_size_comes():
    torch.manual_seed(0)
    windows = Windows(0.75, (2, 3, 4, 5), frozenset())  # 5 does not divide 12
    drawn = [windows.draw(12, 12) for _ in range(2000)]
    shares = {size: drawn.count(size) / 2000 for size in (0, 2, 3, 4, 5)}
    assert shares.pop(5) == 0
    assert all(abs(share - 0.25) < 0.04 for share in shares.values())  # 4 sigma


@pytest.mark.parametrize(
    ("depth", "num_global", "num_windowed", "expected"),
    [
        (12, None, None, {2, 5, 8, 11}),
        (24, 4, None, {5, 11, 17, 23}),
        (12, None, 2, {2, 5, 8, 11}),
        (5, None, 3, {3, 4}),
        (2, 1, None, {1}),
        (3, 4, None, {0, 1, 2}),
    ],
)
def test_global_blocks(depth, num_global, num_windowed, expected):
    assert global_layers(depth, num_global, num_windowed) == expected


def test_global_blocks_are_those_of_tao_and_nvlabs():
    """For depths 4 to 48 and every setting that they take; where they fail, no block is left to be windowed."""
    assert global_layers(27, 4) == global_layers(27) == {5, 11, 17, 23, 26}  # SO400M
    lines = (Path(__file__).parent / "vitdet_global_blocks.txt").read_text().splitlines()
    for setting, blocks in (line.split(": ") for line in lines if not line.startswith("#")):
        name, value = setting.split()
        for depth, mask in zip(range(4, 49), blocks.split(), strict=True):
            bits = (1 << depth) - 1 if mask == "-" else int(mask, 16)
            expected = {i for i in range(depth) if bits >> i & 1}
            assert global_layers(depth, **{name: int(value)}) == expected, (depth, setting)


def test_sizes_where_none_are_named():
    assert design_windows(0.5, [], 12, None, None).sizes == tuple(range(6, 33))


def test_recomputed_windows_give_the_same_gradient(vit):
    vit.windows = Windows(1.0, (2,), frozenset({2}))
    images, gradients = torch.rand(2, 3, 16, 16), []
    for enable in (False, True):
        vit.train().set_grad_checkpointing(enable)
        vit.zero_grad()
        torch.manual_seed(0)
        vit(images).spatial.square().sum().backward()
        gradients.append(torch.cat([p.grad.flatten() for p in vit.parameters()]))
    torch.testing.assert_close(*gradients)
