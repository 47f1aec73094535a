"""Photographs into which something was pasted between one picture and the next: the mask is exact."""

from __future__ import annotations

import tarfile

import numpy as np
import pytest
import skimage.data
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image
from sklearn.metrics import f1_score, precision_score, recall_score

from radioplat.data.detection.boxes import Faults
from radioplat.evaluation.masks.mask_files import find_samples
from radioplat.evaluation.masks.mask_reader import IGNORE, Masked, MaskReader
from radioplat.evaluation.masks.segmentation import Probe, change_result, confusion, segment
from radioplat.spec.schema.dataset import AugmentationConfig
from radioplat.spec.schema.evaluate import ChangeConfig

SIDE = 96


def pair(seed):
    """A crop of a photograph twice, the second time lit otherwise and with discs of a texture on it."""
    rng = np.random.default_rng(seed)
    photograph = (skimage.data.astronaut(), skimage.data.coffee(), skimage.data.chelsea())[seed % 3]
    top, left = (int(rng.integers(0, limit - SIDE)) for limit in photograph.shape[:2])
    before = photograph[top : top + SIDE, left : left + SIDE]
    light = rng.uniform(0.85, 1.15)
    after = np.clip(before * light, 0, 255).astype(np.uint8)
    y, x = np.mgrid[:SIDE, :SIDE]
    mask = np.zeros((SIDE, SIDE), np.uint8)
    for _ in range(int(rng.integers(1, 3))):
        cy, cx, radius = rng.uniform(15, 80), rng.uniform(15, 80), rng.uniform(9, 18)
        mask[(y - cy) ** 2 + (x - cx) ** 2 < radius**2] = 255
    texture = skimage.data.brick()[:SIDE, :SIDE, None] * np.array(rng.uniform(0.3, 1.0, 3))
    after[mask > 0] = texture.astype(np.uint8)[mask > 0]
    return before, after, mask


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    root = tmp_path_factory.mktemp("pairs")
    for i in range(24):
        for name, pixels in zip(("A", "B", "label"), pair(i), strict=True):
            (root / name).mkdir(exist_ok=True)
            Image.fromarray(pixels).save(root / name / f"{i:03d}.png")
    return root


def section(root, **changes):
    """LEVIR-CD's and TAO's own folders, masks of 0 and 255."""
    places = dict(before_dir=f"{root}/A", after_dir=f"{root}/B", masks_dir=f"{root}/label")
    return ChangeConfig(**(places | dict(class_values=[0, 255], ignore_index=None) | changes))


def read(config, samples, **more):
    return list(MaskReader(config, {SIDE}, 5, Faults(), **more).read(samples))


def cells(batch: Masked, role: int) -> torch.Tensor:
    """Mean colours and their spread in cells of 8 pixels."""
    pixels = batch.pixels[role][SIDE].float() / 255
    mean = F.avg_pool2d(pixels, 8)
    spread = (F.avg_pool2d(pixels.square(), 8) - mean.square()).clamp_min(0).sqrt()
    return torch.cat([mean, spread], 1).permute(0, 2, 3, 1)


def differenced(batch: Masked) -> torch.Tensor:
    return (cells(batch, 1) - cells(batch, 0)).abs()


def test_what_was_pasted_is_found_by_the_difference_and_not_by_one_picture(folder):
    config = section(folder)
    found = find_samples(config, "evaluate.change")
    batches = [read(config, split) for split in (found.training, found.held_out)]
    models = {"difference": differenced, "after alone": lambda batch: cells(batch, 1)}
    probes, answers = segment(models, *batches, len(found.training), config, shown=3)
    results = {name: change_result(probe) for name, probe in probes.items()}
    assert results["difference"].change_f1 > 0.7 > 0.5 > (results["after alone"].change_f1 or 0)
    assert results["difference"].images == 6 and results["difference"].trained_on == 18
    assert len(answers.images) == 2 and not torch.equal(*answers.images)
    # Two classes: change is class 1.
    one = results["difference"]
    assert one.change_f1 == one.f1[1] and one.change_iou == one.iou[1]


def test_both_pictures_and_the_mask_are_cut_alike(folder):
    """Where nothing was pasted, pictures differ by their light alone: in every view."""
    config = section(folder)
    found = find_samples(config, "here")
    for batch in read(config, found.training[:6], views=4, augmentation=AugmentationConfig()):
        before, after = (batch.pixels[role][SIDE].float().mean(1) for role in (0, 1))
        pasted = F.max_pool2d((batch.masks != 0).float()[:, None], 7, 1, 3)[:, 0] > 0  # and what the resize mixes in
        apart = (after - before).abs()
        assert apart[~pasted].max() < 45 and apart[batch.masks == 1].mean() > 2 * apart[~pasted].mean()
        assert set(batch.masks.unique().tolist()) <= {0, 1, IGNORE}


@settings(max_examples=30, deadline=None)
@given(st.integers(0, 2**31 - 1), st.integers(2, 4))
def test_precision_recall_and_f1_are_scikit_learns(seed, classes):
    rng = np.random.default_rng(seed)
    true, said = (torch.from_numpy(rng.integers(0, classes, (2, 8, 8)) * rng.integers(0, 2, (2, 8, 8))) for _ in "ab")
    probe = Probe(ChangeConfig(num_classes=classes), 1, "here")
    probe.confusion = confusion(said, true.to(torch.uint8), classes)
    result, pixels = change_result(probe), ((true > 0).flatten(), (said > 0).flatten())
    assert (result.change_f1 or 0) == pytest.approx(f1_score(*pixels, zero_division=0))
    assert (result.change_precision or 0) == pytest.approx(precision_score(*pixels, zero_division=0))
    assert (result.change_recall or 0) == pytest.approx(recall_score(*pixels, zero_division=0))


def test_a_pair_that_is_none_is_counted(folder, tmp_path):
    for name in ("A", "B", "label"):
        (tmp_path / name).mkdir()
        for path in sorted((folder / name).iterdir())[:8]:
            (tmp_path / name / path.name).write_bytes(path.read_bytes())
    (tmp_path / "B" / "001.png").unlink()
    (tmp_path / "label" / "002.png").unlink()
    Image.fromarray(np.zeros((50, 96, 3), np.uint8)).save(tmp_path / "B" / "003.png")
    found = find_samples(config := section(tmp_path), "here")
    reader = MaskReader(config, {SIDE}, 5, found.faults)
    assert sum(len(batch.masks) for batch in reader.read(found.training + found.held_out)) == 5
    assert dict(found.faults.counts) == {"no_after": 1, "no_mask": 1, "size_mismatch": 1}


def test_pairs_in_shards(folder, tmp_path):
    members = {"A": "before.png", "B": "after.png", "label": "seg.png"}
    with tarfile.open(tmp_path / "a.tar", "w") as tar:
        for i in range(6):
            for name, ending in members.items():
                tar.add(folder / name / f"{i:03d}.png", f"{i:03d}.{ending}")
    config = ChangeConfig(shards_dir=str(tmp_path), class_values=[0, 255], ignore_index=None)
    found = find_samples(config, "here")
    assert not found.faults.counts and len(found.training + found.held_out) == 6
    (mine,) = read(config, [s for s in found.training + found.held_out if s.name.endswith(":003")])
    before, after, mask = pair(3)
    assert np.array_equal(mine.pixels[0][SIDE][0].permute(1, 2, 0), before)
    assert np.array_equal(mine.pixels[1][SIDE][0].permute(1, 2, 0), after)
    assert np.array_equal(mine.masks[0], mask // 255)
