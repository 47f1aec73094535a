"""COCO folders and detection shards: what is good is read, whatever is bad is counted by name."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radioplat.data.detection.boxes import Faults
from radioplat.data.detection.coco import entry_boxes, read_coco
from radioplat.data.detection.shards import read_detection_shards
from radioplat.errors import DataError

CATEGORIES = [{"id": 18, "name": "dog"}, {"id": 3, "name": "car"}]


def note(image, box, category=3, **more):
    return {"id": 1, "image_id": image, "category_id": category, "bbox": box, **more}


@pytest.fixture
def coco(tmp_path, photo):
    """coco(images, annotations) -> the set that is read; 64 x 48 images a.jpg and b.png are there."""
    (tmp_path / "images").mkdir()
    (tmp_path / "images/a.jpg").write_bytes(photo())
    (tmp_path / "images/b.png").write_bytes(photo(format="PNG"))
    (tmp_path / "images/text.jpg").write_text("no image")

    def read(images, annotations, categories=CATEGORIES):
        content = {"images": images, "annotations": annotations, "categories": categories}
        (tmp_path / "a.json").write_text(json.dumps(content))
        return read_coco(str(tmp_path / "a.json"), str(tmp_path / "images"), "dataset.x")

    return read


A, B = {"id": 5, "file_name": "a.jpg", "width": 64, "height": 48}, {"id": 2, "file_name": "b.png"}


def test_a_good_folder(coco):
    found = coco([A, B], [note(5, [1, 2, 10, 20], 18, area=150, iscrowd=1), note(5, [0, 0, 64, 48])])
    assert found.classes == ("car", "dog") and found.category_ids == (3, 18)
    first, second = found.pictures
    assert (first.image_id, first.width, first.height, first.name) == (5, 64, 48, "a.jpg")
    assert first.boxes.xyxy.tolist() == [[1, 2, 11, 22], [0, 0, 64, 48]]
    assert first.boxes.labels.tolist() == [1, 0] and first.boxes.crowd.tolist() == [True, False]
    assert first.boxes.area.tolist() == [150, 64 * 48]
    assert first.decode().rgb.shape == (48, 64, 3) and second.decode().rgb.shape == (48, 64, 3)
    assert len(second.boxes) == 0 and found.faults.counts == {"empty_image": 1}
    assert str(found) == "2 images, 2 boxes of 2 classes; faults: 1 empty_image"


def test_bad_entries_are_counted_and_named(coco):
    images = [
        A, {**A}, {"id": 7, "file_name": "gone.jpg"}, {"id": 8, "file_name": "text.jpg"}, {"id": "x"}, None,
        {"id": 9, "file_name": "../images/a.jpg"}, {"id": 10, "file_name": "a.jpg", "width": 48, "height": 64},
        {"id": 11, "file_name": "nul\0.jpg"},
    ]  # fmt: skip
    notes = [
        note(5, [60, 40, 10, 20]), note(5, [70, 0, 5, 5]), note(5, [1, 1, 0, 9]), note(5, [1, 1, -3, 9]),
        note(5, [1, 2, 3]), note(5, "box"), note(5, [1, 2, 3, float("nan")]), note(5, [1, 1, 2, 2], 99),
        note(5, [1, 1, 2, 2], None), note(5, [1, 1, 2, 2], []), note(99, [1, 1, 2, 2]), note(None, [1, 1, 2, 2]), 7,
        {"image_id": 5}, note(5, [1, 1, 1e400, 2]), note(5, [10**400, 1, 1, 2]),
    ]  # fmt: skip
    found = coco(images, notes)
    assert [p.name for p in found.pictures] == ["a.jpg"]
    assert found.pictures[0].boxes.xyxy.tolist() == [[60, 40, 64, 48]]
    assert found.faults.counts == {
        "clipped": 1, "outside": 1, "zero_area": 2, "bad_box": 6, "unknown_class": 3, "unknown_image": 3,
        "duplicate_image": 1, "missing_file": 2, "not_an_image": 1, "bad_image": 3, "size_mismatch": 1,
    }  # fmt: skip
    assert ("missing_file", "gone.jpg") in found.faults.named


def test_zero_objects_is_a_set_of_empty_images(coco):
    found = coco([A, B], [])
    assert found.num_boxes == 0 and found.faults.counts == {"empty_image": 2}


@pytest.mark.parametrize(
    "images, categories, says",
    [
        ([{"id": 7, "file_name": "gone.jpg"}], CATEGORIES, "1 missing_file"),
        ([], CATEGORIES, "names no image"),
        ([A], [], "no categories"),
        ([A], [{"name": "x"}], "cannot be used"),
        ([A], [*CATEGORIES, {"id": 3}], "cannot be used"),
    ],
)
def test_what_leaves_nothing_is_refused(coco, images, categories, says):
    with pytest.raises(DataError, match=says) as caught:
        coco(images, [], categories)
    assert caught.value.problems[0].where == "dataset.x"


@pytest.mark.parametrize("text", ["", "[]", "{", '{"images": [], "annotations": 3}', "[" * 100_000])
def test_a_file_that_is_no_annotation_file(tmp_path, text):
    (tmp_path / "a.json").write_text(text)
    with pytest.raises(DataError, match="a.json"):
        read_coco(str(tmp_path / "a.json"), str(tmp_path))
    with pytest.raises(DataError, match="cannot be read"):
        read_coco(str(tmp_path / "b.json"), str(tmp_path))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=6,
)


ENTRY = st.fixed_dictionaries({}, optional={k: JSON for k in ("bbox", "category_id", "iscrowd", "area")})


@given(st.lists(ENTRY | JSON, max_size=6))
@settings(max_examples=60, deadline=None)
def test_any_json_is_boxes_or_counted(entries):
    faults = Faults()
    boxes = entry_boxes(entries, {0: 0, "a": 1}, faults, "x")
    assert len(boxes) + sum(faults.counts.values()) == len(entries)
    assert np.isfinite(boxes.xyxy).all() and np.isfinite(boxes.area).all()


def test_shards(tmp_path, photo, write_tar):
    side = {
        "a": {"boxes": [[1, 2, 11, 22], [60, 0, 70, 9]], "labels": [1, "car"], "crowd": [0, 1], "area": [50, None]},
        "b": {"annotations": [note(0, [1, 2, 10, 20], 0), {"bbox": [0, 0, 5, 5], "category": "dog"}]},
        "c": {"boxes": []},
        "d": {"caption": "no boxes here"},
        "e": {"boxes": [[0, 0, 1, 1]], "labels": []},
        "f": {"boxes": [[0, 0, 5, 5]]},
        "g": {"boxes": [[0, 0, 5, 5], [1, 2], [3, 3, 3, 9], [0, 0, 9, 9]], "labels": [2, 0, 0, "cat"]},
    }
    members = [m for k, v in side.items() for m in ((f"{k}.jpg", photo()), (f"{k}.json", json.dumps(v).encode()))]
    members += [("h.jpg", photo()), ("i.jpg", photo()), ("i.json", b"{"), ("j.jpg", b"text")]
    write_tar(tmp_path / "sub/one.tar", members)
    found = read_detection_shards(str(tmp_path), ["car", "dog"])
    assert [p.name for p in found.pictures] == ["a", "b", "c", "g"]
    a, b, c, g = (p.boxes for p in found.pictures)
    assert a.xyxy.tolist() == [[1, 2, 11, 22], [60, 0, 64, 9]] and a.labels.tolist() == [1, 0]
    assert a.crowd.tolist() == [False, True] and a.area.tolist() == [50, 36]
    assert b.xyxy.tolist() == [[1, 2, 11, 22], [0, 0, 5, 5]] and b.labels.tolist() == [0, 1]
    assert len(c) == 0 and len(g) == 0
    assert found.faults.counts == {
        "clipped": 1, "empty_image": 2, "no_boxes": 3, "bad_sidecar": 3, "unknown_class": 2, "bad_box": 1,
        "zero_area": 1, "not_an_image": 1,
    }  # fmt: skip
    assert found.pictures[1].decode().rgb.shape == (48, 64, 3)
    with pytest.raises(DataError, match="0 tar files"):
        (tmp_path / "empty").mkdir()
        read_detection_shards(str(tmp_path / "empty"), ["car"])
    with pytest.raises(DataError, match="cannot be read"):
        read_detection_shards(str(tmp_path / "gone"), ["car"])
