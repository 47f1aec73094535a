"""Boxes joined to the index: which images take part, what a batch carries, and that the order knows of them."""

from __future__ import annotations

import json

import numpy as np
import pytest

from benchmarks.composites import CLASSES, write_set
from radioplat.data.detection.box_table import BoxTable, padded
from radioplat.data.detection.boxes import Boxes
from radioplat.data.detection.split import read_split
from radioplat.data.index.build import build_index
from radioplat.data.loading.arrow_batch import batch_to_table, table_to_batch
from radioplat.data.loading.reader import MicroBatchReader
from radioplat.data.loading.run_data import RunData
from radioplat.data.views.render import ViewSpec
from radioplat.errors import DataError
from radioplat.spec.schema.dataset import AugmentationConfig, SplitConfig

PIXELS = 10**9


@pytest.fixture(scope="module")
def split(tmp_path_factory):
    """Six images; the last has no entry in the annotations, the fourth no object."""
    folder = tmp_path_factory.mktemp("set")
    images, file = write_set(folder, 6, held_out=False, side=48)
    content = json.loads(file.read_text())
    content["images"] = content["images"][:5]
    content["annotations"] = [a for a in content["annotations"] if a["image_id"] not in (3, 5)]
    content["annotations"][0]["iscrowd"] = 1
    file.write_text(json.dumps(content))
    return SplitConfig(images_dir=str(images), coco=str(file))


@pytest.fixture(scope="module")
def data(split, tmp_path_factory):
    index = build_index(split, "dataset.train_dataset", tmp_path_factory.mktemp("index"), max_pixels=PIXELS)
    found = read_split(split, (), "dataset.train_dataset")
    assert found.classes == CLASSES
    return RunData.create(index, split, PIXELS, BoxTable.join(index, found.pictures))


def test_images_without_annotation_are_left_out_and_images_without_objects_stay(data):
    assert data.kept().tolist() == [0, 1, 2, 3, 4]
    assert data.reasons[5] == "no_boxes" and data.rejected(0) == {"no_boxes": 1}
    assert len(data.boxes.of(3)) == 0 and data.boxes.known[3] and not data.boxes.known[5]


def test_the_runs_copy_is_the_same_and_the_order_names_the_boxes(data, split, tmp_path):
    data.save(tmp_path)
    again = RunData.load(tmp_path, split)
    assert again.boxes.digest() == data.boxes.digest()
    for row in range(6):
        np.testing.assert_array_equal(again.boxes.of(row).xyxy, data.boxes.of(row).xyxy)
    assert again.order_fields(4, PIXELS) == data.order_fields(4, PIXELS)
    data.boxes.all.xyxy[0, 0] += 1
    assert again.order_fields(4, PIXELS)["boxes"] != data.order_fields(4, PIXELS)["boxes"]
    data.boxes.all.xyxy[0, 0] -= 1
    (tmp_path / "boxes.npz").write_bytes(b"torn")
    with pytest.raises(DataError, match="boxes cannot be read"):
        RunData.load(tmp_path, split)


def test_views_carry_the_boxes_that_they_show(data):
    augmentation = AugmentationConfig(with_random_crop=False)
    augmentation.random_flip.hflip_probability = 1.0
    views = [ViewSpec("96", 96), ViewSpec("24", 24)]
    reader = MicroBatchReader(data.index, data.order, views, augmentation, 0, 4, boxes=data.boxes)
    batch = reader.read(0)
    for name, scale in (("96", 2.0), ("24", 0.5)):
        view = batch.views[name]
        for row, mine in zip(batch.sample_id.tolist(), view.boxes, strict=True):
            known, mine = data.boxes.of(row), mine[mine[:, 4] >= 0]
            flipped = known.xyxy.copy()
            flipped[:, [0, 2]] = 48 - known.xyxy[:, [2, 0]]
            np.testing.assert_allclose(mine[:, :4], scale * flipped, atol=1e-4)
            assert mine[:, 4].tolist() == known.labels.tolist() and mine[:, 5].tolist() == known.crowd.tolist()


def test_boxes_travel_with_their_batch(data):
    reader = MicroBatchReader(data.index, data.order, [ViewSpec("48", 48)], None, 0, 2, boxes=data.boxes)
    for rows in ([0, 1], [3, 3]):  # some, and none at all
        batch = reader.read_rows(rows)
        again = table_to_batch(batch_to_table(batch))
        np.testing.assert_array_equal(again.views["48"].boxes, batch.views["48"].boxes)
    plain = MicroBatchReader(data.index, data.order, [ViewSpec("48", 48)], None, 0, 2).read_rows([0, 1])
    assert table_to_batch(batch_to_table(plain)).views["48"].boxes is None


def test_padding_fills_up_to_the_longest():
    out = padded([Boxes.none(), Boxes.of([[0, 1, 2, 3], [4, 5, 6, 7]], [2, 0], [False, True])])
    assert out.shape == (2, 2, 6) and (out[0, :, 4] == -1).all()
    assert out[1].tolist() == [[0, 1, 2, 3, 2, 0], [4, 5, 6, 7, 0, 1]]
    assert padded([]).shape == (0, 0, 6)


@pytest.mark.parametrize(
    "change, says",
    [
        (dict(coco=None), "boxes are needed"),
        (dict(coco="/nowhere.json"), "cannot be read"),
        (dict(images_dir=None, coco=None), "no data is given"),
    ],
)
def test_a_split_that_cannot_be_read_is_named(split, change, says):
    with pytest.raises(DataError, match=says):
        read_split(SplitConfig(**{"images_dir": split.images_dir, "coco": split.coco} | change), (), "dataset.val")


def test_other_classes_are_refused(split):
    with pytest.raises(DataError, match="not dog"):
        read_split(split, ("dog",), "dataset.val_dataset")
