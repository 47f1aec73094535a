"""Right, spurious and missed boxes by hand; and the threshold where F1 is highest."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from radioplat.data.detection.boxes import Boxes, Detections
from radioplat.evaluation.detection.detection_errors import DetectionErrors, detection_errors, match_image

TRUTH = Boxes.of([[0, 0, 10, 10], [20, 20, 40, 40], [50, 50, 60, 60]], [0, 1, 0], [False, False, True])
FOUND = Detections.of(
    [[0, 0, 10, 9], [0, 0, 10, 10], [20, 20, 40, 40], [20, 20, 40, 41], [50, 50, 60, 60]],
    [0, 0, 0, 1, 0],
    [0.9, 0.8, 0.7, 0.6, 0.5],
)


def test_each_box_by_hand():
    # A second box on one object, and one of another class, are wrong; one on a crowd is neither.
    assert match_image(TRUTH, FOUND).tolist() == [1, 0, 0, 1, -1]
    said = detection_errors([TRUTH, Boxes.none()], [FOUND, Detections.of([[0, 0, 1, 1]], [1], [0.1])], 2)
    assert said.objects == 2 and len(said.scores) == 5
    assert said.counts(0.85) == (1, 0, 1)
    assert said.counts(0.0) == (2, 3, 0)
    # 2 * 1 / (1 + 2), 2 / 4, 2 / 5, 4 / 6, 4 / 7: the first and the fourth tie, and the surer is taken
    assert said.best_threshold() == 0.9


@given(st.lists(st.tuples(st.floats(0.01, 1), st.booleans()), min_size=1, max_size=30), st.integers(0, 5))
def test_no_other_threshold_has_a_higher_f1(pairs, missing):
    scores = np.array([score for score, _ in pairs])
    right = np.array([r for _, r in pairs])
    said = DetectionErrors(scores, right, int(right.sum()) + missing)
    best = said.best_threshold()

    def f1(threshold: float) -> float:
        good, spurious, missed = said.counts(threshold)
        return 2 * good / max(1, 2 * good + spurious + missed)

    if not right.any():
        assert best == 0.5
    elif len(set(scores)) == len(scores):
        assert all(f1(best) >= f1(score) - 1e-12 for score in scores)
