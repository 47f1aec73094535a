"""Micro-batches from real shards, good and bad."""

from __future__ import annotations

import os
import pickle
from concurrent.futures import ThreadPoolExecutor
from types import SimpleNamespace

import numpy as np
import pytest
from index_samples import samples

from radioplat.data.images.decode import decode_rgb
from radioplat.data.index.build import build_index
from radioplat.data.loading import reader as reading
from radioplat.data.loading.reader import MicroBatchReader
from radioplat.data.storage.files import HandlePool
from radioplat.data.views.crops import centre_crop
from radioplat.data.views.render import ViewSpec, render, view_matrix
from radioplat.data.views.view_plan import Equivariance
from radioplat.spec.schema.dataset import (
    AugmentationConfig,
    RandomColor,
    RandomErase,
    RandomRotate,
    SplitConfig,
    Switch,
    TarSource,
)

VIEWS = [ViewSpec("32", 32), ViewSpec("48", 48)]


class Reversed:
    """An order that is easy to foresee."""

    def __init__(self, count: int, repeats: int = 1) -> None:
        self.count, self.repeats = count, repeats

    def slice(self, start, stop):
        position = np.arange(start, stop, dtype=np.int64)
        passes, place = np.divmod(position // self.repeats, self.count)
        views = passes * self.repeats + position % self.repeats
        return SimpleNamespace(position=position, sample_id=self.count - 1 - place, view_number=views)


@pytest.fixture
def index(tmp_path, write_tar, photo):
    half = photo(80, 60, name="rocket.jpg")
    members = [(f"{i}.jpg", photo(80 + i, 60, name="coffee.png")) for i in range(4)]
    members += [(f"{i}.cls", str(i).encode()) for i in range(4)]
    members += [("cut.jpg", half[: len(half) // 2]), ("grey.png", photo(40, 90, "PNG", mode="L"))]
    write_tar(tmp_path / "a/1.tar", members)
    write_tar(tmp_path / "a/2.tar", [(f"z{i}.webp", photo(50, 50, "WEBP")) for i in range(2)])
    split = SplitConfig(tar_data_sources=[TarSource(str(tmp_path / "a"))])
    return build_index(split, "d", tmp_path / "index", max_pixels=10**9)


def reader(index, **kw) -> MicroBatchReader:
    arguments = {"order": Reversed(len(index)), "views": VIEWS, "augmentation": AugmentationConfig(), "seed": 3}
    return MicroBatchReader(index, **arguments | {"batch_size": 4} | kw)


def equal(a, b) -> bool:
    same = [np.array_equal(a.views[v].pixels, b.views[v].pixels) for v in a.views]
    same += [np.array_equal(a.views[v].homography, b.views[v].homography) for v in a.views]
    return all(same) and a.faults == b.faults and np.array_equal(a.sample_id, b.sample_id)


def test_a_micro_batch_follows_the_order(index):
    batch = reader(index).read(1)
    assert batch.micro_batch == 1 and len(batch) == 4
    assert batch.position.tolist() == [4, 5, 6, 7] and batch.sample_id.tolist() == [3, 2, 1, 0]
    assert batch.label.tolist() == [3, 2, 1, 0] and batch.weight.tolist() == [1] * 4 and batch.faults == {}
    for name, size in (("32", 32), ("48", 48)):
        view = batch.views[name]
        assert view.pixels.shape == (4, 3, size, size) and view.pixels.dtype == np.uint8
        assert view.homography.shape == (4, 3, 3) and view.homography.dtype == np.float32
    # One crop for all views: the corners of both map to the same place.
    corners = [batch.views[n].homography @ np.array([s, s, 1.0]) for n, s in (("32", 32), ("48", 48))]
    np.testing.assert_allclose(*corners, rtol=1e-5)
    assert (batch.sample_id.dtype, batch.position.dtype, batch.weight.dtype) == (np.int64, np.int64, np.float32)


def test_an_unreadable_sample_keeps_its_place(index):
    row = samples(index)["key"].to_pylist().index("cut")
    micro_batch, place = divmod(len(index) - 1 - row, 4)
    batch = reader(index).read(micro_batch)
    assert batch.weight.tolist() == [0.0 if i == place else 1.0 for i in range(4)]
    assert list(batch.faults) == [row] and batch.faults[row].startswith("corrupt_image")
    assert not batch.views["32"].pixels[place].any() and batch.sample_id[place] == row


def test_several_views_of_an_image_are_decoded_once(index, monkeypatch):
    """Each is the view that it would be alone, also where a run of them began in the micro-batch before."""
    decoded = []
    monkeypatch.setattr(reading, "decode_rgb", lambda *given: decoded.append(1) or decode_rgb(*given))
    together = reader(index, order=Reversed(len(index), 3), batch_size=6).read(2)
    assert len(decoded) == 2 and together.sample_id.tolist() == [3] * 3 + [2] * 3
    shown = together.views["48"]
    assert len({pixels.tobytes() for pixels in shown.pixels[3:]}) == 3
    alone = [reader(index, order=Reversed(len(index), 3), batch_size=1).read(12 + i).views["48"] for i in range(6)]
    assert np.array_equal(shown.homography, np.concatenate([view.homography for view in alone]))
    apart = [reader(index, order=Reversed(len(index), 3), batch_size=4).read(i).views["48"] for i in (3, 4)]
    assert np.array_equal(np.concatenate([view.homography for view in apart])[:6], shown.homography)
    bad = len(index) - 1 - samples(index)["key"].to_pylist().index("cut")
    faulty = reader(index, order=Reversed(len(index), 3), batch_size=3).read(bad)
    assert faulty.weight.tolist() == [0.0] * 3 and len(faulty.faults) == 1


def test_crops_depend_on_seed_and_position_only(index):
    first, micro_batch = reader(index), 1
    assert equal(first.read(micro_batch), reader(index).read(micro_batch))
    assert not equal(first.read(micro_batch), reader(index, seed=4).read(micro_batch))
    assert not np.array_equal(first.read(1).views["32"].homography, first.read(3).views["32"].homography)


def test_threads_and_pickles_read_the_same(index):
    first = reader(index)
    expected = [first.read(g) for g in range(4)]
    with ThreadPoolExecutor(4) as pool:
        got = list(pool.map(first.read, [0, 1, 2, 3] * 4))
    assert all(equal(expected[i % 4], batch) for i, batch in enumerate(got))
    assert equal(pickle.loads(pickle.dumps(first)).read(1), expected[1])


def test_rows_are_read_as_evaluation_views(index, photo):
    batch = reader(index, order=None).read_rows([2, 0])
    assert batch.sample_id.tolist() == [2, 0] and batch.position.tolist() == [-1, -1]
    matrix = view_matrix(centre_crop(82, 60).matrix(), 32)
    expected, _ = render(decode_rgb(photo(82, 60, name="coffee.png")), matrix, 32)
    assert (batch.views["32"].pixels[0] == expected.transpose(2, 0, 1)).all()
    assert (batch.views["32"].homography[0] == matrix.astype(np.float32)).all()
    with pytest.raises(ValueError):
        reader(index, order=None).read(0)


def test_samples_of_a_shard_that_changed_keep_their_places(index):
    os.utime(index.shard_paths[0], (1, 1))
    ids = [0, len(index) - 1]
    batch = reader(index).read_rows(ids)
    assert batch.weight.tolist() == [0, 1] and batch.sample_id.tolist() == ids
    assert batch.faults.keys() == {0} and batch.faults[0].startswith("shard_changed")
    os.unlink(index.shard_paths[0])
    assert reader(index).read_rows([0]).faults == {0: "shard_changed: gone: No such file or directory"}


@pytest.mark.parametrize("equivariance", Equivariance)
def test_everything_at_once_is_keyed_and_cut_anywhere(index, equivariance):
    augmentation = AugmentationConfig(
        random_color=RandomColor(True),
        random_aug=Switch(True),
        random_erase=RandomErase(True),
        random_rotate=RandomRotate(True, 0.9, [90.0, 33.0]),
        with_random_blur=True,
    )
    sizes = ((32, 0.5), (48, 0.5))
    views = [ViewSpec("student", 48, 8, sizes), ViewSpec("teacher", 48, 16, sizes)]
    first, again = (reader(index, augmentation=augmentation, equivariance=equivariance, views=views) for _ in range(2))
    shapes = set()
    for micro_batch in (0, 1, 5, 6):
        batch = first.read(micro_batch)
        assert equal(batch, again.read(micro_batch))
        student, teacher = batch.views["student"], batch.views["teacher"]
        assert student.pixels.shape == teacher.pixels.shape
        shapes.add(student.pixels.shape[-1])
        alike = (student.homography == teacher.homography).all()
        assert alike == (equivariance is Equivariance.none)
    assert shapes == {32, 48}


def test_shifted_views_agree_where_both_look(index):
    views = [ViewSpec("student", 64, 8), ViewSpec("teacher", 64, 16)]
    batch = reader(index, views=views, equivariance=Equivariance.shift).read(1)
    student, teacher = batch.views["student"], batch.views["teacher"]
    moves = np.linalg.inv(student.homography.astype(float)) @ teacher.homography  # teacher pixels to student pixels
    np.testing.assert_allclose(moves[:, :2, :2], np.tile(np.eye(2), (4, 1, 1)), atol=1e-4)
    shift = np.rint(moves[:, :2, 2]).astype(int)
    np.testing.assert_allclose(moves[:, :2, 2] - shift, 0, atol=1e-3)
    assert (shift % 8 == 0).all() and shift.any()
    for i, (x, y) in enumerate(shift):
        a = student.pixels[i, :, max(0, y) : 64 + min(0, y), max(0, x) : 64 + min(0, x)].astype(int)
        b = teacher.pixels[i, :, max(0, -y) : 64 - max(0, y), max(0, -x) : 64 - max(0, x)]
        assert np.abs(a - b)[:, 2:-2, 2:-2].max() <= 3  # at a border the filter sees only one side


def test_the_pool_is_bounded_and_closes(tmp_path):
    pool = HandlePool(limit=3)
    before = len(os.listdir("/proc/self/fd"))
    for i in range(8):
        (tmp_path / str(i)).write_bytes(bytes([i]) * 9)
        assert pool.get(str(tmp_path / str(i)), lambda handle: None).read(2, 100) == bytes([i]) * 7
    assert len(pool) == 3 and len(os.listdir("/proc/self/fd")) == before + 3
    del pool
    assert len(os.listdir("/proc/self/fd")) == before


@pytest.mark.parametrize("views", [1, 2])
def test_views_repeat_after_so_many_passes(index, views):
    """In whatever micro-batch an image is, and in another place of it."""
    everything = RandomColor(enable=True), RandomErase(enable=True, erase_probability=1.0)
    augmentation = AugmentationConfig(random_color=everything[0], random_erase=everything[1], views_per_image=views)
    count = len(index)
    shown = {
        size: [
            batch.views["48"].pixels[i]
            for number in range(3 * count // size)
            for batch in [reader(index, augmentation=augmentation, batch_size=size).read(number)]
            for i in range(size)
        ]
        for size in (1, count, 3 * count)
    }
    assert all(np.array_equal(shown[1], other) for other in shown.values())
    passes = np.array(shown[1]).reshape(3, count, *shown[1][0].shape)
    assert np.array_equal(passes[views], passes[0])
    assert views == 1 or all((one != two).any() for one, two in zip(passes[0], passes[1], strict=True) if one.any())
    assert any((one != two).any() for one, two in zip(passes[0][1:], passes[0][:-1], strict=True))
