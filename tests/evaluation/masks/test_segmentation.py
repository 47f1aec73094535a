"""Composites of real textures with exact masks."""

from __future__ import annotations

import re
import struct
import tarfile
import zlib

import numpy as np
import pytest
import skimage.data
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.metrics import f1_score, jaccard_score

from radioplat.data.detection.boxes import Faults
from radioplat.errors import DataError
from radioplat.evaluation.masks.decoders import cell_shares
from radioplat.evaluation.masks.mask_files import find_samples
from radioplat.evaluation.masks.mask_reader import IGNORE, Masked, MaskReader
from radioplat.evaluation.masks.segmentation import class_f1, class_iou, confusion, segment
from radioplat.spec.schema.dataset import AugmentationConfig
from radioplat.spec.schema.evaluate import DecoderKind, LightDecoderConfig, SegmentationConfig

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
    return section(folder)


def section(folder, **changes):
    """Of images and masks below ``folder``."""
    places = dict(images_dir=str(folder / "images"), masks_dir=str(folder / "masks"))
    return SegmentationConfig(**places, num_classes=CLASSES, **changes)


def read(config, samples, sizes=frozenset({SIDE}), batch_size=4, **more):
    return list(MaskReader(config, set(sizes), batch_size, Faults(), **more).read(samples))


def judged(config, models, views=1):
    """The results of ``models`` (name to map) under ``config``."""
    found = find_samples(config, "evaluate.segmentation")
    training = read(config, found.training, views=views, augmentation=AugmentationConfig())
    maps = views * len(found.training)
    probes, answers = segment(models, training, read(config, found.held_out), maps, config, shown=2)
    return {name: probe.result() for name, probe in probes.items()}, answers


def colours(batch: Masked, size=SIDE, cell=8) -> torch.Tensor:
    """Mean colour and its spread in each cell: a map that knows textures."""
    pixels = batch.pixels[0][size].float() / 255
    mean = F.avg_pool2d(pixels, cell)
    spread = F.avg_pool2d(pixels.square(), cell) - mean.square()
    return torch.cat([mean, spread.clamp_min(0).sqrt()], 1).permute(0, 2, 3, 1)


def nothing(batch: Masked) -> torch.Tensor:
    return torch.zeros(len(batch.masks), 12, 12, 4)


def test_textures_are_segmented_and_a_constant_map_says_the_commonest_class(tmp_path):
    config = write(tmp_path, 16, palette=True)
    found, answers = judged(config, {"colours": colours, "nothing": nothing})
    assert found["colours"].miou > 0.7 and found["colours"].accuracy > 0.85
    assert found["nothing"].iou[1:] == (0.0, 0.0)  # everything is lawn
    assert found["nothing"].miou == pytest.approx(found["nothing"].iou[0] / 3)
    assert found["nothing"].accuracy == pytest.approx(found["nothing"].iou[0])
    assert (found["colours"].images, found["colours"].trained_on, found["colours"].decoder) == (4, 12, "linear")
    assert judged(config, {"colours": colours})[0]["colours"] == found["colours"]
    right = answers.by_model["colours"] == answers.masks
    assert answers.images[0].shape == (2, 3, SIDE, SIDE) and right[answers.masks != IGNORE].float().mean() > 0.8


def test_a_light_decoder_sees_beyond_its_cell(tmp_path):
    """What a linear layer cannot tell by one cell alone: its neighbours say which class it is."""
    config = write(tmp_path, 24)

    def edges(batch: Masked) -> torch.Tensor:
        """1 where a cell's neighbour differs, and nothing of what it differs in; and the place along x."""
        cells = cell_shares(batch.masks, CLASSES, (12, 12)).argmax(3)
        rim = torch.zeros_like(cells, dtype=torch.float)
        rim[:, :, 1:] = (cells[:, :, 1:] != cells[:, :, :-1]).float()
        noise = torch.rand(*cells.shape, 6, generator=torch.Generator().manual_seed(int(cells.sum())))
        return torch.cat([rim[..., None], (cells == 1).float()[..., None], noise], 3)

    linear, _ = judged(config, {"edges": edges})
    config.decoder, config.light = DecoderKind.light, LightDecoderConfig(width=16, steps=150, batch_size=8, lr=1e-2)
    light, _ = judged(config, {"edges": edges})
    assert light["edges"].decoder == "light" and light["edges"].weight_decay is None
    assert light["edges"].miou > linear["edges"].miou + 0.05
    assert judged(config, {"edges": edges})[0] == light, "seeded"


def test_more_views_of_few_images(tmp_path):
    """Crops and flips: each is a map of its own, and the cells of an image are never on both sides of a choice."""
    config = write(tmp_path, 6)
    once, _ = judged(config, {"colours": colours})
    often, _ = judged(config, {"colours": colours}, views=4)
    assert once["colours"].trained_on == often["colours"].trained_on == 4
    assert often["colours"].miou != once["colours"].miou and often["colours"].miou > 0.5
    found = find_samples(config, "here")
    batches = read(config, found.training, views=3, augmentation=AugmentationConfig())
    assert torch.cat([b.owner for b in batches]).tolist() == [0, 0, 0, 1, 1, 1, 2, 2, 2, 3, 3, 3]
    plain = torch.cat([b.masks for b in read(config, found.training)])
    assert torch.equal(torch.cat([b.masks for b in batches])[::3], plain), "the first view is the centred square"


def test_the_finer_the_map_the_better_the_border(tmp_path):
    """Maps that are the true masks, seen at coarser and coarser grids."""
    config = write(tmp_path, 12)

    def truth(cells):
        return lambda batch: cell_shares(batch.masks, CLASSES, (cells, cells))

    models = {str(cells): truth(cells) for cells in (48, 12, 3)}
    found, _ = judged(config, models)
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
        f1 = f1_score(true, said, labels=present, average=None)
        assert [class_f1(confusion(answer, masks, classes))[c] for c in present] == pytest.approx(list(f1))


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
    config = section(tmp_path)
    found = find_samples(config, "here")
    for batch in read(config, found.training + found.held_out, {48, 96}, 2):
        pixels = batch.pixels[0]
        assert batch.masks.shape[1:] == (96, 96) and pixels[48].shape[1:] == (3, 48, 48)
        assert torch.equal(pixels[96][:, 0], batch.masks * 100)
        small = F.avg_pool2d(batch.masks[:, None].float() * 100, 2)[:, 0]
        assert (pixels[48][:, 0].float() - small).abs().mean() < 8
    for batch in read(config, found.training, {96}, 2, views=3, augmentation=AugmentationConfig()):
        known = batch.masks != IGNORE
        apart = (batch.pixels[0][96][:, 0].float() - batch.masks.float() * 100).abs()[known]
        assert apart.mean() < 8, "crops and flips move both"


def test_split_by_name_and_by_folders(tmp_path):
    config = write(tmp_path / "a", 12)
    found = find_samples(config, "here")
    training, held_out = found.training, found.held_out
    assert not {p.name for p in training} & {p.name for p in held_out} and len(training + held_out) == 12
    assert find_samples(config, "here") == found
    other = write(tmp_path / "b", 3, first=40)
    config.val_images_dir, config.val_masks_dir = other.images_dir, other.masks_dir
    found = find_samples(config, "here")
    assert (len(found.training), len(found.held_out)) == (12, 3)
    config.max_images = 2
    found = find_samples(config, "here")
    assert (len(found.training), len(found.held_out)) == (2, 2)


def test_shards_hold_what_folders_do(tmp_path):
    """The same images and masks, as members of tars: damage and what has no mask is counted."""
    config = write(tmp_path, 8)
    tars = tmp_path / "shards"
    tars.mkdir()
    for part in (0, 1):
        with tarfile.open(tars / f"{part}.tar", "w") as tar:
            for image in sorted((tmp_path / "images" / f"set{part}").iterdir()):
                key = image.stem
                tar.add(image, f"set{part}/{key}{image.suffix}")
                tar.add(tmp_path / "masks" / f"set{part}" / f"{key}.png", f"set{part}/{key}.seg.png")
            (tmp_path / "other.json").write_text("{}")
            tar.add(tmp_path / "other.json", f"set{part}/{key}.json")
            tar.add(image, f"set{part}/alone{image.suffix}")
    (tars / "torn.tar").write_bytes((tars / "1.tar").read_bytes()[:700])
    shards = SegmentationConfig(shards_dir=str(tars), num_classes=CLASSES)
    found = find_samples(shards, "here")
    assert found.faults.counts["no_mask"] == 2 and found.faults.counts["truncated_tar"] >= 1, found.faults
    samples = {s.name.rpartition("/")[2]: s for s in found.training + found.held_out}
    plain = find_samples(config, "here")
    for other in plain.training + plain.held_out:
        one = samples.pop(other.name.rpartition("/")[2])
        (mine,), (its,) = read(shards, [one]), read(config, [other])
        assert torch.equal(mine.masks, its.masks) and torch.equal(mine.pixels[0][SIDE], its.pixels[0][SIDE])
    assert not samples


def overwrite(name, pixels):
    return lambda folder, config: Image.fromarray(pixels).save(folder / name)


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        (lambda f, c: (f / "masks/set0/000.png").unlink(), "no_mask"),
        (lambda f, c: (f / "images/set1/001.jpg").unlink(), "no_image"),
        (lambda f, c: (f / "images/set1/001.png").write_bytes(b"twice"), "duplicate_name"),
        (overwrite("masks/set0/000.png", np.full((96, 120), 7, np.uint8)), "unknown_class"),
        (overwrite("masks/set0/000.png", np.zeros((96, 120, 3), np.uint8)), "bad_mask"),
        (overwrite("masks/set0/000.png", np.zeros((9, 12), np.uint8)), "size_mismatch"),
        (lambda f, c: (f / "masks/set0/000.png").write_bytes(b"no image"), "bad_mask"),
        (lambda f, c: (f / "images/set1/001.jpg").write_bytes(b"no image"), "unreadable"),
        (lambda f, c: (f / "masks/set0/000.png").write_bytes(_bomb()), "bad_mask"),
    ],
)
def test_what_cannot_be_used_is_counted_and_left_out(tmp_path, change, reason):
    config = write(tmp_path, 8)
    change(tmp_path, config)
    found = find_samples(config, "here")
    reader = MaskReader(config, {32}, 3, found.faults)
    masks = [len(batch.masks) for batch in reader.read(found.training + found.held_out)]
    assert sum(masks) == (8 if reason == "duplicate_name" else 7)
    assert dict(found.faults.counts) == {reason: 1}
    told = found.faults.named[0][1]
    assert re.search("00[01]", told) and "('" not in told


def _bomb() -> bytes:
    """The header of a PNG of 60000 x 60000 pixels."""
    head = b"IHDR" + struct.pack(">II5B", 60000, 60000, 8, 0, 0, 0, 0)
    return b"\x89PNG\r\n\x1a\n" + struct.pack(">I", 13) + head + struct.pack(">I", zlib.crc32(head))


@pytest.mark.parametrize(
    ("change", "where", "match"),
    [
        (lambda f, c: setattr(c, "images_dir", str(f / "nowhere")), "images_dir", "no such folder"),
        (lambda f, c: setattr(c, "masks_dir", str(f / "images" / "set1")), "masks_dir", "holds no PNG"),
        (lambda f, c: setattr(c, "masks_dir", str(f / "masks" / "set0")), "masks_dir", "no image has its mask"),
        (lambda f, c: setattr(c, "max_images", 1), None, None),
    ],
)
def test_where_nothing_can_be_used_it_is_told(tmp_path, change, where, match):
    config = write(tmp_path, 8)
    change(tmp_path, config)
    if where is None:
        assert len(find_samples(config, "here").training) == 1  # check() refuses it by field
        return
    with pytest.raises(DataError, match=match) as error:
        find_samples(config, "here")
    assert error.value.problems[0].where == f"here.{where}"


def test_masks_without_any_class_are_told(tmp_path):
    config = write(tmp_path, 8)
    for path in (tmp_path / "masks").rglob("*.png"):
        Image.fromarray(np.full((96, 120), IGNORE, np.uint8)).save(path)
    for kind in DecoderKind:
        config.decoder = kind
        with pytest.raises(DataError, match="no pixel of the training masks has a class"):
            judged(config, {"colours": colours})


def test_other_numbers_stand_for_the_classes(tmp_path):
    """Masks of 10, 20 and 30 with 0 for none tell what those of 0, 1, 2 and 255 do."""
    config = write(tmp_path, 6)
    plain, _ = judged(config, {"colours": colours})
    for path in (tmp_path / "masks").rglob("*.png"):
        mask = np.asarray(Image.open(path))
        Image.fromarray(np.where(mask == IGNORE, 0, 10 * (mask + 1)).astype(np.uint8)).save(path)
    other, _ = judged(section(tmp_path, class_values=[10, 20, 30], ignore_index=0), {"colours": colours})
    assert other == plain
    with pytest.raises(DataError, match="no pixel of the training masks"):
        judged(section(tmp_path, class_values=[1, 2, 3], ignore_index=0), {"colours": colours})
