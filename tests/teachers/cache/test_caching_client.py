"""A cached feature is the teacher's own, of exactly what is shown; a damaged cache costs a pass and nothing else."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file

from radioplat.data.batch import Batch, View
from radioplat.teachers.cache.caching_client import CachedTeacher
from radioplat.teachers.cache.key import teacher_key, weights_hash
from radioplat.teachers.serving.client import InlineTeacher
from radioplat.teachers.serving.transport import to_host
from radioplat.training.feed.feeder import Feeder

GRID = (2, 2)


class Watched(InlineTeacher):
    """A real teacher that notes how many images each request holds."""

    def __init__(self, teacher, grid=GRID):
        super().__init__(teacher, grid, "cpu")
        self.asked: list[int] = []
        self.shared = 0

    def share(self, pixels, batch=None):
        self.shared += 1
        return super().share(pixels, batch)

    def submit(self, shared, micro_batch):
        self.asked.append(len(shared))
        return super().submit(shared, micro_batch)


def batch_of(seed: int = 0, count: int = 3, size: int = 64, weight=None) -> Batch:
    pixels = np.random.default_rng(seed).integers(0, 256, (count, 3, size, size), dtype=np.uint8)
    ids = np.arange(count) + 10
    weight = np.ones(count, np.float32) if weight is None else np.array(weight, np.float32)
    view = View(pixels, np.tile(np.eye(3, dtype=np.float32), (count, 1, 1)))
    return Batch(0, {"64": view}, ids, ids, weight, np.full(count, -1))


def places_of(rows: np.ndarray) -> np.ndarray:
    """Rows of one shard of 1000 bytes."""
    return np.stack([np.full_like(rows, 1000), np.full_like(rows, 7), rows * 50, np.full_like(rows, 50)], 1)


def behind(store, teacher, client, grid=GRID, places=places_of) -> CachedTeacher:
    return CachedTeacher(client, teacher_key(teacher, grid, client.precision(), weights_hash(teacher)), store, places)


def ask(client, batch: Batch):
    return client.submit(client.share(batch.views["64"].pixels, batch), batch.micro_batch)()


def arrays(packed) -> dict[str, np.ndarray]:
    packed = to_host(packed)
    found = {"summary": packed.summary, "spatial": packed.spatial, **packed.named}
    return {name: array for name, array in found.items() if array is not None}


def assert_same(a, b, rows=slice(None)) -> None:
    a, b = arrays(a), arrays(b)
    assert a.keys() == b.keys() and a
    for name in a:
        assert a[name].dtype == np.uint16
        np.testing.assert_array_equal(a[name][rows], b[name][rows])


class TestHits:
    @pytest.mark.parametrize(
        "fields",
        [
            {"mode": "combo", "loss_type": "MSE"},
            {"mode": "summary", "loss_type": "CS"},
            {"mode": "logits", "loss_type": "KL"},
        ],
        ids=["combo", "summary", "logits"],
    )
    def test_bit_for_bit_a_fresh_pass(self, fields, timm_teacher, open_store):
        teacher, _ = timm_teacher("test_resnet", classes=5, **fields)
        batch, plain = batch_of(), Watched(teacher)
        fresh = ask(plain, batch)
        store = open_store()
        filling = behind(store, teacher, Watched(teacher))
        first = ask(filling, batch)
        assert_same(first, fresh)
        assert first.cached == (0, 3) and first.seconds > 0
        unwritten = ask(filling, batch)
        store.close()
        client = Watched(teacher)
        kept = ask(behind(open_store(), teacher, client), batch)
        for found in (unwritten, kept):
            assert_same(found, fresh)
            assert found.cached == (3, 0) and found.seconds == 0
        assert client.asked == [] and client.shared == 0

    def test_features_of_another_upsampler_are_never_served(self, upsampled, save_featsharp, open_store):
        store, batch, teacher = open_store(), batch_of(size=128), upsampled()
        first = ask(behind(store, teacher, Watched(teacher)), batch)
        again = Watched(teacher)
        assert_same(ask(behind(store, teacher, again), batch), first)
        save_featsharp(seed=1)
        another = Watched(teacher)
        second = ask(behind(store, teacher, another), batch)
        assert (again.asked, another.asked) == ([], [3])
        assert_same(second, ask(Watched(teacher), batch))
        assert (second.spatial != first.spatial).any()

    def test_a_micro_batch_that_lacks_a_sample_is_asked_for_whole(self, timm_teacher, open_store):
        """So its features are those of a run without a cache; of fewer images at once the last bits may differ."""
        teacher, _ = timm_teacher("test_resnet", mode="combo", loss_type="MSE")
        batch, other, client = batch_of(0), batch_of(1), Watched(teacher)
        cached = behind(open_store(), teacher, client)
        ask(cached, batch)
        mixed = batch.views["64"].pixels.copy()
        mixed[1] = other.views["64"].pixels[1]
        mixed = dataclasses.replace(batch, views={"64": View(mixed, batch.views["64"].homography)})
        found = ask(cached, mixed)
        assert client.asked == [3, 3] and found.cached == (0, 3)
        assert_same(found, ask(Watched(teacher), mixed))
        assert ask(cached, mixed).cached == (3, 0)

    @pytest.mark.parametrize("kind", ["test_resnet", "test_vit"])
    def test_features_of_another_batch_serve_bit_for_bit(self, kind, timm_teacher, open_store):
        teacher, _ = timm_teacher(kind, mode="combo", loss_type="MSE")
        batch, client = batch_of(), Watched(teacher)
        cached = behind(open_store(), teacher, client)
        ask(cached, batch)
        order, view = [2, 0, 1], batch.views["64"]
        mixed = {"64": View(view.pixels[order].copy(), view.homography)}
        turned = dataclasses.replace(batch, views=mixed, sample_id=batch.sample_id[order])
        found = ask(cached, turned)
        assert client.asked == [3] and found.cached == (3, 0)
        assert_same(found, ask(Watched(teacher), turned))

    def test_an_answer_can_be_taken_twice(self, timm_teacher, open_store):
        teacher, _ = timm_teacher("test_resnet", mode="summary", loss_type="CS")
        cached, batch = behind(open_store(), teacher, Watched(teacher)), batch_of()
        pending = cached.submit(cached.share(batch.views["64"].pixels, batch), 0)
        assert pending() is pending()

    def test_teachers_of_one_view_share_what_is_sent(self, timm_teacher, open_store):
        """By way of the feeder: one of them sends the view for both, and on a second round none does."""
        one, _ = timm_teacher("test_resnet", mode="summary", loss_type="CS")
        two = dataclasses.replace(timm_teacher("test_vit", mode="summary", loss_type="CS")[0], name="u")
        store, clients = open_store(), {"t": Watched(one), "u": Watched(two)}
        cached = {"t": behind(store, one, clients["t"]), "u": behind(store, two, clients["u"])}
        for cold in (True, False):
            feeder = Feeder(iter([batch_of()]), cached, [one, two], 1)
            [(batch, answers)] = list(feeder)
            for teacher in (one, two):
                assert answers[teacher.name]().cached == ((0, 3) if cold else (3, 0))
                assert_same(answers[teacher.name](), ask(InlineTeacher(teacher, GRID, "cpu"), batch))
        assert [client.asked for client in clients.values()] == [[3], [3]]
        assert clients["t"].shared + clients["u"].shared == 1


class TestNeverKept:
    def test_samples_without_weight(self, timm_teacher, open_store):
        teacher, _ = timm_teacher("test_resnet", mode="combo", loss_type="MSE")
        store, client, batch = open_store(), Watched(teacher), batch_of(weight=[1, 0, 1])
        cached = behind(store, teacher, client)
        assert ask(cached, batch).cached == (0, 2) and len(store) == 2
        again = ask(cached, batch)
        assert client.asked == [3] and again.cached == (2, 0)
        assert not again.summary[1].any() and not again.spatial[1].any()
        assert ask(cached, batch_of(weight=[0, 0, 0])).summary.shape == again.summary.shape
        assert client.asked == [3, 3] and len(store) == 2

    def test_pixels_of_no_batch(self, timm_teacher, open_store):
        teacher, _ = timm_teacher("test_resnet", mode="summary", loss_type="CS")
        store, client = open_store(), Watched(teacher)
        cached, pixels = behind(store, teacher, client), batch_of().views["64"].pixels
        for _ in range(2):
            assert_same(cached.submit(cached.share(pixels), 0)(), client.submit(pixels, 0)())
        assert len(store) == 0

    def test_answers_that_are_not_finite(self, timm_teacher, open_store):
        teacher, _ = timm_teacher("test_resnet", mode="summary", loss_type="CS", norm_std=[1e-42] * 3)
        store, client, batch = open_store(), Watched(teacher), batch_of()
        cached = behind(store, teacher, client)
        found = [ask(cached, batch) for _ in range(2)]
        assert not torch.from_numpy(found[0].summary).view(torch.bfloat16).isfinite().all()
        assert_same(*found)
        assert client.asked == [3, 3] and len(store) == 0


class TestKey:
    @pytest.fixture
    def teacher(self, timm_teacher):
        return timm_teacher("test_resnet", mode="combo", loss_type="MSE")[0]

    @pytest.mark.parametrize("change", ["crop", "flip", "pixel", "shard", "time", "place"])
    def test_another_view_or_another_sample_misses(self, change, teacher, open_store):
        store, client, batch = open_store(), Watched(teacher), batch_of(count=1)
        ask(behind(store, teacher, client), batch)
        pixels, homography = batch.views["64"].pixels.copy(), batch.views["64"].homography
        if change == "crop":
            pixels = np.roll(pixels, 1, axis=2)
        elif change == "flip":
            pixels = pixels[..., ::-1]
        elif change == "pixel":
            pixels[0, 2, 63, 63] ^= 1
        column = {"shard": 0, "time": 1, "place": 2}.get(change)

        def places(rows):
            found = places_of(rows)
            if column is not None:
                found[:, column] += 1
            return found

        changed = dataclasses.replace(batch, views={"64": View(pixels, homography)})
        found = ask(behind(store, teacher, client, places=places), changed)
        assert found.cached == (0, 1) and client.asked == [1, 1]
        assert_same(found, ask(InlineTeacher(teacher, GRID, "cpu"), changed))

    def test_another_teacher_another_grid_other_outputs_miss(self, teacher, timm_teacher, resolve, open_store):
        """Of one folder, every combination finds its own."""
        store, batch = open_store(), batch_of()
        path = teacher.weights
        state = timm_teacher("test_resnet")[1].state_dict()
        state = {k: v * 1.01 if v.is_floating_point() else v for k, v in state.items()}
        trained_on = str(Path(path).with_name("other.safetensors"))
        save_file(state, trained_on)
        backbone = {"model": {"backbone": {"type": "test_resnet"}}, "input_size": 64, "loss_type": "MSE"}
        variants = [
            (teacher, GRID),
            (teacher, (1, 1)),
            (dataclasses.replace(teacher, weights=trained_on), GRID),
            (dataclasses.replace(teacher, norm_mean=(0.5, 0.5, 0.5)), GRID),
            (resolve(mode="spatial", pretrained_teacher_model_path=path, **backbone), GRID),
            (resolve("bf16", mode="combo", pretrained_teacher_model_path=path, **backbone), GRID),
        ]
        for expected in ((0, 3), (3, 0)):
            for variant, grid in variants:
                client = Watched(variant, grid)
                found = ask(behind(store, variant, client, grid), batch)
                assert found.cached == expected
                assert_same(found, ask(InlineTeacher(variant, grid, "cpu"), batch))


def test_a_bit_that_turned(open_store, files, timm_teacher):
    """On disk, or in a file that the power took before it was written out: found by its sum, asked for anew."""
    teacher, _ = timm_teacher("test_resnet", mode="combo", loss_type="MSE")
    store, batch = open_store(), batch_of()
    fresh = ask(behind(store, teacher, Watched(teacher)), batch)
    store.close()
    [path] = files()
    data = bytearray(path.read_bytes())
    data[-3] ^= 4
    path.write_bytes(data)
    store, client = open_store(), Watched(teacher)
    found = ask(behind(store, teacher, client), batch)
    assert_same(found, fresh)
    assert client.asked == [3] and store.lost == 1
