"""When bad data ends a run: the share of it among the last samples."""

from __future__ import annotations

import numpy as np
import pytest
from PIL import Image

from radioplat.data.batch import Batch
from radioplat.data.index.build import build_index
from radioplat.errors import DataError
from radioplat.spec.schema.dataset import SplitConfig
from radioplat.training.guards import bad_samples
from radioplat.training.guards.bad_samples import BadSamples
from radioplat.training.hooks.step_record import StepRecord

SIZE = 64


@pytest.fixture
def bad(tmp_path, monkeypatch) -> BadSamples:
    """Over 64 images, with a window of 16 times as many and a limit of 5%."""
    monkeypatch.setattr(bad_samples, "WINDOW", 16 * SIZE)
    monkeypatch.setattr(bad_samples, "FEWEST", 100)
    (tmp_path / "images").mkdir()
    for number in range(SIZE):
        Image.new("RGB", (32, 32)).save(tmp_path / "images" / f"{number:02d}.png")
    split = SplitConfig(images_dir=str(tmp_path / "images"))
    return BadSamples(build_index(split, "d", tmp_path / "i", max_pixels=10**9), 0.05)


def step(bad: BadSamples, number: int, unreadable: int, size: int = SIZE) -> None:
    """``unreadable`` of ``size`` samples."""
    ids = np.arange(size)
    weight = (ids >= unreadable).astype(np.float32)
    faults = dict.fromkeys(range(unreadable), "corrupt_image: torn")
    bad.begin_step(number)
    bad.begin_micro_batch(number, Batch(0, {}, ids, ids, weight, ids, faults))
    bad.begin_micro_batch(number, Batch(-1, {}, ids, ids, weight, ids, faults))  # padding does not count
    bad.end_step(StepRecord(number, 0.1, sums={f"bad_samples/{name}": count for name, count in bad.sums().items()}))


def test_late_in_a_run_a_burst_ends_it_as_soon_as_early(bad):
    for number in range(2000):
        step(bad, number, 0)
    with pytest.raises(DataError, match=r"64 of the last 1024 samples.*\(64 corrupt_image\).*63.png .* torn"):
        step(bad, 2000, SIZE)


def test_a_share_below_the_limit_never_ends_it_and_one_above_does(bad):
    for number in range(200):
        step(bad, number, 3)
    with pytest.raises(DataError, match="share of 0.05"):
        for number in range(200, 220):
            step(bad, number, 4)


def test_a_few_bad_images_end_no_small_run(bad):
    for number in range(2):
        step(bad, number, 2, size=2)
    step(bad, 2, 1, size=2)
    with pytest.raises(DataError, match="6 of the last 7 samples"):
        step(bad, 3, 1, size=1)


def test_what_left_the_window_is_not_in_the_report(bad):
    for number in range(40):
        step(bad, number, 3)
    for number in range(40, 60):
        step(bad, number, 0)
    with pytest.raises(DataError, match=r"64 of the last 1024 samples.*\(64 corrupt_image\)"):
        step(bad, 60, SIZE)


def test_one_shard_that_is_gone_ends_no_large_run():
    """One of sixteen that take turns, with 10,000 samples."""
    assert 10_000 < 0.05 * bad_samples.WINDOW
