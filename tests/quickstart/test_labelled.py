from collections import Counter

import numpy as np

from radioplat.quickstart.labelled import SIDES, labelled_images


def test_the_splits_cover_the_sets_and_share_no_image():
    train, held_out = (list(labelled_images(held_out)) for held_out in (False, True))
    counts = Counter(image.label for image in train + held_out)
    assert counts.pop("face") == counts.pop("not_face") == 100
    assert sum(counts.values()) == 1797
    assert set(counts) == {f"digit_{k}" for k in range(10)}
    assert Counter(image.label for image in held_out).keys() == Counter(image.label for image in train).keys()
    seen = {image.pixels.tobytes() for image in train}
    assert not any(image.pixels.tobytes() in seen for image in held_out)


def test_enlarging_keeps_the_picture():
    rng = np.random.default_rng(0)
    image = next(labelled_images(held_out=False))
    large = image.enlarged(rng)
    assert SIDES[0] <= large.width == large.height <= SIDES[1]
    back = np.asarray(large.resize(image.raw().size, 4), dtype=float)  # 4: box filter
    assert np.abs(back - image.pixels).mean() < 6
