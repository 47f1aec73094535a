"""Average precision: COCO's equals pycocotools on its own files, VOC's equals what a pencil gives."""

from __future__ import annotations

import contextlib
import io
import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radioplat.data.detection.boxes import Boxes, Detections
from radioplat.evaluation.detection.coco import coco_metrics
from radioplat.evaluation.detection.voc import mean_ap, voc_ap

pytest.importorskip("pycocotools")

ONE = [Boxes.of([(0, 0, 10, 10)], [0])]
NOTHING = Detections.of([], [], [])


def random_set(seed: int, images: int = 6, classes: int = 3) -> tuple[list[Boxes], list[Detections]]:
    """Objects, and detections that are near some of them or anywhere; all scores differ."""
    rng = np.random.default_rng(seed)
    truth, found = [], []
    for _ in range(images):
        n = rng.integers(0, 6)
        corner, side = rng.uniform(0, 200, (n, 2)), rng.uniform(5, 150, (n, 2))
        xyxy = np.hstack([corner, corner + side])
        area = np.prod(side, 1) * rng.uniform(0.5, 1, n)
        truth.append(Boxes.of(xyxy, rng.integers(0, classes, n), rng.random(n) < 0.2, area))
        near = np.repeat(np.arange(n), 2)
        guess = np.sort((xyxy[near] + rng.normal(0, 8, (2 * n, 4))).reshape(-1, 2, 2), 1).reshape(-1, 4)
        labels = np.where(rng.random(2 * n) < 0.8, truth[-1].labels[near], rng.integers(0, classes, 2 * n))
        found.append(Detections.of(guess, labels, rng.random(2 * n)))
    return truth, found


def official(truth, found, classes: int, tmp_path) -> np.ndarray:
    """The twelve numbers of ``COCOeval.summarize``, from files with other ids than ours."""
    from pycocotools.coco import COCO
    from pycocotools.cocoeval import COCOeval

    def box(corners):
        x0, y0, x1, y1 = corners.tolist()
        return [x0, y0, x1 - x0, y1 - y0]

    notes = [
        {"image_id": 10 * i + 3, "category_id": 7 * int(b.labels[j]) + 1, "bbox": box(b.xyxy[j]),
         "iscrowd": int(b.crowd[j]), "area": float(b.area[j])}
        for i, b in enumerate(truth) for j in range(len(b))
    ]  # fmt: skip
    results = [
        {"image_id": 10 * i + 3, "category_id": 7 * int(d.labels[j]) + 1, "bbox": box(d.xyxy[j]),
         "score": float(d.scores[j])}
        for i, d in enumerate(found) for j in range(len(d))
    ]  # fmt: skip
    content = {
        "images": [{"id": 10 * i + 3} for i in range(len(truth))],
        "categories": [{"id": 7 * c + 1, "name": "x"} for c in range(classes)],
        "annotations": [note | {"id": k + 1} for k, note in enumerate(notes)],
    }
    (tmp_path / "truth.json").write_text(json.dumps(content))
    (tmp_path / "found.json").write_text(json.dumps(results))
    with contextlib.redirect_stdout(io.StringIO()):
        known = COCO(str(tmp_path / "truth.json"))
        judge = COCOeval(known, known.loadRes(str(tmp_path / "found.json")), "bbox")
        judge.evaluate()
        judge.accumulate()
        judge.summarize()
    return judge.stats


@pytest.mark.parametrize("seed", range(4))
def test_coco_is_pycocotools(seed, tmp_path):
    truth, found = random_set(seed)
    ours = coco_metrics(truth, found, 3)
    stats = official(truth, found, 3, tmp_path)
    said = [ours.map, ours.map50, ours.map75, ours.small, ours.medium, ours.large, ours.recall]
    np.testing.assert_array_equal([-1 if v is None else v for v in said], [*stats[:6], stats[8]])
    known = [v for v in ours.by_class if v is not None]
    assert np.mean(known) == pytest.approx(ours.map, abs=1e-12) and 0 < ours.map < 1


def test_coco_closed_forms():
    perfect = coco_metrics(ONE, [Detections.of([(0, 0, 10, 10)], [0], [0.5])], 2)
    one = pytest.approx(1)
    assert (perfect.map, perfect.map50, perfect.by_class, perfect.small) == (one, one, (one, None), one)
    assert perfect.large is None
    # IoU 0.62: right at 0.50, 0.55 and 0.60 of ten thresholds.
    loose = coco_metrics(ONE, [Detections.of([(0, 0, 6.2, 10)], [0], [0.5])], 1)
    assert (loose.map, loose.map50, loose.map75) == (pytest.approx(0.3), one, 0)
    # A surer wrong one first: precision 1/2 at every recall.
    second = coco_metrics(ONE, [Detections.of([(50, 0, 60, 10), (0, 0, 10, 10)], [0, 0], [0.9, 0.5])], 1)
    assert second.map50 == pytest.approx(0.5)


def test_no_objects_and_no_detections():
    guess = Detections.of([(0, 0, 10, 10)], [0], [0.5])
    for truth, found in (([Boxes.none()], [guess]), ([Boxes.none()], [NOTHING]), ([], [])):
        result = coco_metrics(truth, found, 2)
        assert result.map is None and result.by_class == (None, None)
        assert voc_ap(truth, found, 2) == (None, None)
    assert coco_metrics(ONE, [NOTHING], 1).map == 0 and voc_ap(ONE, [NOTHING], 1) == (0,)
    assert mean_ap((None, None)) is None and mean_ap((None, 0.5, 1.0)) == 0.75
    with pytest.raises(ValueError):
        coco_metrics(ONE, [], 1)
    with pytest.raises(ValueError):
        voc_ap(ONE, [], 1)


def test_what_a_broken_model_says_is_counted():
    nan = float("nan")
    bad = Detections.of(
        [(nan, 0, 1, 1), (0, 0, 10, 10), (5, 5, 5, 9), (0, 0, 10, 10), (0, 0, 10, 10)],
        [0, 0, 0, 9, -1], [1, nan, 1, 1, 1],
    )  # fmt: skip
    result = coco_metrics(ONE, [bad], 1)
    assert result.map == 0 and result.unusable == 5 and voc_ap(ONE, [bad], 1) == (0,)


def test_voc_by_hand():
    """Two objects; right, wrong, right: the area is 1/2 * 1 + 1/2 * 2/3."""
    truth = [Boxes.of([(0, 0, 10, 10), (20, 0, 30, 10)], [0, 0])]
    found = [Detections.of([(0, 0, 10, 10), (60, 0, 70, 10), (20, 0, 30, 8)], [0, 0, 0], [0.9, 0.8, 0.7])]
    assert voc_ap(truth, found, 1) == (pytest.approx(5 / 6),)
    assert voc_ap(truth, found, 1, iou=0.85) == (pytest.approx(1 / 2),)  # the third has IoU 0.8
    # The same object twice: the second time it is wrong.
    twice = [Detections.of([(0, 0, 10, 10), (0, 0, 10, 9), (20, 0, 30, 10)], [0, 0, 0], [0.9, 0.8, 0.7])]
    assert voc_ap(truth, twice, 1) == (pytest.approx(5 / 6),)
    # The one in between lies on a difficult object: neither right nor wrong.
    hard = [Boxes.of([(0, 0, 10, 10), (20, 0, 30, 10), (60, 0, 70, 10)], [0, 0, 0], [0, 0, 1])]
    assert voc_ap(hard, found, 1) == (pytest.approx(1),)


def test_voc_across_images_goes_by_score():
    truth = [Boxes.of([(0, 0, 10, 10)], [1]), Boxes.none()]
    found = [Detections.of([(0, 0, 10, 10)], [1], [0.3]), Detections.of([(0, 0, 10, 10)], [1], [0.6])]
    assert voc_ap(truth, found, 2) == (None, pytest.approx(1 / 2))


@given(st.integers(0, 10_000))
@settings(max_examples=25, deadline=None)
def test_voc_properties(seed):
    truth, found = random_set(seed)
    before = voc_ap(truth, found, 3)
    assert all(ap is None or 0 <= ap <= 1 for ap in before)
    order = np.random.default_rng(seed).permutation(len(truth))
    shuffled = voc_ap([truth[i] for i in order], [found[i] for i in order], 3)
    assert all(a == pytest.approx(b) for a, b in zip(before, shuffled, strict=True))
    perfect = [Detections.of(b.xyxy, b.labels, np.arange(len(b)) + 1) for b in truth]
    assert all(ap is None or ap == pytest.approx(1) for ap in voc_ap(truth, perfect, 3))
    worse = [Detections.of([*d.xyxy, (900, 0, 910, 9)], [*d.labels, 0], [*d.scores, 2.0]) for d in found]
    after = voc_ap(truth, worse, 3)
    assert before[0] is None or after[0] <= before[0]
    assert after[1:] == before[1:]


@given(st.lists(st.tuples(st.booleans(), st.booleans()), min_size=1, max_size=40), st.integers(0, 99))
@settings(max_examples=25, deadline=None)
def test_voc_is_coco_where_objects_lie_apart(cases, seed):
    """Both match the same pairs there; COCO takes the same curve at 101 recalls, which moves it by 0.02 at most."""
    corners = [(30 * i, 0, 30 * i + 10, 10) for i in range(len(cases))]
    off = [(x + 15, 0, x + 25, 10) for x, *_ in corners]
    truth = [Boxes.of([box], [0]) for box in corners]
    scores = np.random.default_rng(seed).random((len(cases), 2))
    found = [
        Detections.of([box] * right + [beside] * wrong, [0] * (right + wrong), s[: right + wrong])
        for box, beside, (right, wrong), s in zip(corners, off, cases, scores, strict=True)
    ]  # fmt: skip
    assert abs(voc_ap(truth, found, 1)[0] - coco_metrics(truth, found, 1).map50) <= 0.02
