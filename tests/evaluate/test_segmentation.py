"""Composites of real textures with exact masks."""

from __future__ import annotations

import numpy as np
import pytest
import skimage.data
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.metrics import jaccard_score

from radioplat.errors import DataError
from radioplat.evaluate.masks import IGNORE, Masked, find_pairs, read_pairs
from radioplat.evaluate.segmentation import cell_shares, class_iou, confusion, segment
from radioplat.spec.evaluation import SegmentationConfig

SIDE, CLASSES = 96, 3


def composite(seed):
    """A disc and a bar of other textures on a lawn: (uint8 ``[96, 120, 3]``, classes uint8 ``[96, 120]``)."""
    rng = np.random.default_rng(seed)
    height, width = SIDE, 120
    textures = [skimage.data.grass(), skimage.data.brick(), skimage.data.gravel()]
    tints = [(0.6, 1.0, 0.5), (1.0, 0.7, 0.6), (0.7, 0.8, 1.0)]
    y, x = np.mgrid[:height, :width]
    mask = np.zeros((height, width), np.uint8)
    cy, cx, radius = rng.uniform(25, 70), rng.uniform(35, 85), rng.uniform(18, 28)
    mask[(y - cy) ** 2 + (x - cx) ** 2 < radius**2] = 1
    left = int(rng.integers(15, 85))
    mask[:, left : left + 20] = 2
    image = np.zeros((height, width, 3), np.uint8)
    for number, (texture, tint) in enumerate(zip(textures, tints, strict=True)):
        top, start = rng.integers(0, 300, 2)
        patch = texture[top : top + height, start : start + width, None] * np.array(tint)
        image[mask == number] = patch.astype(np.uint8)[mask == number]
    mask[:2] = IGNORE  # a rim without a class
    return image, mask


def write(folder, count, first=0, palette=False):
    for i in range(first, first + count):
        image, mask = composite(i)
        for name, pixels, kind in (("images", image, "jpg" if i % 2 else "png"), ("masks", mask, "png")):
            path = folder / name / f"set{i % 2}" / f"{i:03d}.{kind}"
            path.parent.mkdir(parents=True, exist_ok=True)
            picture = Image.fromarray(pixels)
            if name == "masks" and palette:
                picture.putpalette([255 - v for v in range(256) for _ in range(3)])
            picture.save(path)
    return SegmentationConfig(str(folder / "images"), str(folder / "masks"), CLASSES)


def colours(batch: Masked, size=SIDE, cell=8) -> torch.Tensor:
    """Mean colour and its spread in each cell: a map that knows textures."""
    pixels = batch.pixels[size].float() / 255
    mean = F.avg_pool2d(pixels, cell)
    spread = F.avg_pool2d(pixels.square(), cell) - mean.square()
    return torch.cat([mean, spread.clamp_min(0).sqrt()], 1).permute(0, 2, 3, 1)


def nothing(batch: Masked) -> torch.Tensor:
    return torch.zeros(len(batch.masks), 12, 12, 4)


def test_textures_are_segmented_and_a_constant_map_says_the_commonest_class(tmp_path):
    config = write(tmp_path, 16, palette=True)
    training, held_out = find_pairs(config)
    assert len(held_out) == 4 and len(training) == 12

    def read(pairs):
        return read_pairs(pairs, {SIDE}, CLASSES, 4)

    found = segment({"colours": colours, "nothing": nothing}, read(training), read(held_out), len(training), config)
    assert found["colours"].miou > 0.7 and found["colours"].accuracy > 0.85
    assert found["nothing"].iou[1:] == (0.0, 0.0)  # everything is lawn
    assert found["nothing"].miou == pytest.approx(found["nothing"].iou[0] / 3)
    assert found["nothing"].accuracy == pytest.approx(found["nothing"].iou[0])
    assert found["colours"].images == 4
    again = segment({"colours": colours}, read(training), read(held_out), len(training), config)
    assert again["colours"] == found["colours"]


def test_the_finer_the_map_the_better_the_border(tmp_path):
    """Maps that are the true masks, seen at coarser and coarser grids."""
    config = write(tmp_path, 12)
    training, held_out = find_pairs(config)

    def truth(cells):
        return lambda batch: cell_shares(batch.masks, CLASSES, (cells, cells))

    models = {str(cells): truth(cells) for cells in (48, 12, 3)}
    batches = [list(read_pairs(pairs, {SIDE}, CLASSES, 5)) for pairs in (training, held_out)]
    found = segment(models, *batches, len(training), config)
    assert found["48"].miou > 0.95 > found["12"].miou > found["3"].miou


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 2**31 - 1), st.integers(2, 6), st.integers(1, 400))
def test_intersection_over_union_is_scikit_learns(seed, classes, count):
    generator = torch.Generator().manual_seed(seed)
    masks = torch.randint(0, classes, (1, 1, count), generator=generator).to(torch.uint8)
    answer = torch.randint(0, classes, (1, 1, count), generator=generator)
    ignored = torch.rand(1, 1, count, generator=generator) < 0.2
    masks[ignored] = IGNORE
    true, said = masks[~ignored].long().numpy(), answer[~ignored].numpy()
    iou = class_iou(confusion(answer, masks, classes))
    present = sorted({*true.tolist(), *said.tolist()})
    assert [c for c, value in enumerate(iou) if value is not None] == present
    if present:
        expected = jaccard_score(true, said, labels=present, average=None)
        assert [iou[c] for c in present] == pytest.approx(list(expected))


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31 - 1), st.sampled_from([(4, 4), (2, 8), (8, 8)]))
def test_shares_of_a_cell_are_counts_of_its_pixels(seed, grid):
    masks = torch.randint(0, 4, (2, 8, 8), generator=torch.Generator().manual_seed(seed)).to(torch.uint8)
    masks[masks == 3] = IGNORE
    shares = cell_shares(masks, 3, grid)
    h, w = 8 // grid[0], 8 // grid[1]
    for row in range(grid[0]):
        for column in range(grid[1]):
            cell = masks[:, row * h : (row + 1) * h, column * w : (column + 1) * w].flatten(1)
            expected = torch.stack([(cell == c).float().mean(1) for c in range(3)], 1)
            assert torch.allclose(shares[:, row, column], expected)


def test_mask_and_image_are_cut_alike(tmp_path):
    """An image that is its own mask, in grey: view and mask must tell the same."""
    for name in ("images", "masks"):
        (tmp_path / name).mkdir()
    for i in range(3):
        mask = composite(i)[1]
        mask[mask == IGNORE] = 0
        Image.fromarray(mask).save(tmp_path / "masks" / f"{i}.png")
        Image.fromarray(mask * 100).save(tmp_path / "images" / f"{i}.png")
    config = SegmentationConfig(str(tmp_path / "images"), str(tmp_path / "masks"), CLASSES)
    training, held_out = find_pairs(config)
    for batch in read_pairs(training + held_out, {48, 96}, CLASSES, 2):
        assert batch.masks.shape[1:] == (96, 96) and batch.pixels[48].shape[1:] == (3, 48, 48)
        assert torch.equal(batch.pixels[96][:, 0], batch.masks * 100)
        small = F.avg_pool2d(batch.masks[:, None].float() * 100, 2)[:, 0]
        assert (batch.pixels[48][:, 0].float() - small).abs().mean() < 8


def test_split_by_name_and_by_folders(tmp_path):
    config = write(tmp_path / "a", 12)
    training, held_out = find_pairs(config)
    assert not {p.name for p in training} & {p.name for p in held_out} and len(training + held_out) == 12
    assert find_pairs(config) == (training, held_out)
    other = write(tmp_path / "b", 3, first=40)
    config.val_images_dir, config.val_masks_dir = other.images_dir, other.masks_dir
    training, held_out = find_pairs(config)
    assert (len(training), len(held_out)) == (12, 3)
    config.max_images = 2
    assert [len(split) for split in find_pairs(config)] == [2, 2]


def broken(tmp_path, change):
    config = write(tmp_path, 4)
    change(tmp_path, config)
    for pairs in find_pairs(config):
        list(read_pairs(pairs, {32}, CLASSES, 2))


def overwrite(name, pixels):
    return lambda folder, config: Image.fromarray(pixels).save(folder / name)


@pytest.mark.parametrize(
    ("change", "where", "match"),
    [
        (lambda f, c: (f / "masks/set0/000.png").unlink(), "masks_dir", "000.png has no mask"),
        (lambda f, c: (f / "images/set1/001.jpg").unlink(), "images_dir", "001.png has no image"),
        (lambda f, c: setattr(c, "images_dir", str(f / "nowhere")), "images_dir", "no such folder"),
        (overwrite("masks/set0/000.png", np.full((96, 120), 7, np.uint8)), "num_classes", "class 7"),
        (overwrite("masks/set0/000.png", np.zeros((96, 120, 3), np.uint8)), "masks_dir", "no mask"),
        (overwrite("masks/set0/000.png", np.zeros((9, 12), np.uint8)), "masks_dir", "12x9"),
        (lambda f, c: (f / "images/set1/001.jpg").write_bytes(b"no image"), "images_dir", "cannot be read"),
    ],
)
def test_what_cannot_be_read_is_told(tmp_path, change, where, match):
    with pytest.raises(DataError, match=match) as error:
        broken(tmp_path, change)
    assert error.value.problems[0].where == f"evaluate.segmentation.{where}"
