"""Nothing that a feature depends on can change without another key."""

from __future__ import annotations

import dataclasses
import io
import os
import tarfile
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from radioplat.data.index.build import build_index
from radioplat.errors import WeightsError
from radioplat.models.student.checkpoint import save_student
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.schema.dataset import SplitConfig, TarSource
from radioplat.teachers.cache.key import SamplePlaces, feature_key, sample_digest, teacher_key, weights_hash


@pytest.fixture
def teacher(timm_teacher):
    return timm_teacher("test_resnet", mode="combo", loss_type="MSE")[0]


def test_every_field_counts(teacher):
    def key(of=teacher, grid=(2, 2), precision="float32", weights="w"):
        return teacher_key(of, grid, precision, weights)

    backbone = teacher.backbone
    keys = [
        key(),
        key(grid=(2, 1)),
        key(precision="bfloat16"),
        key(weights="v"),
        key(dataclasses.replace(teacher, norm_std=(1.0, 1.0, 1.0))),
        key(dataclasses.replace(teacher, input_size=96)),
        key(dataclasses.replace(teacher, terms=teacher.terms[:1])),
        key(dataclasses.replace(teacher, backbone=dataclasses.replace(backbone, type="test_vit"))),
        key(dataclasses.replace(teacher, backbone=dataclasses.replace(backbone, kwargs={"summary": "mean"}))),
        key(dataclasses.replace(teacher, backbone=dataclasses.replace(backbone, type="dinov2_vits14"))),
    ]
    assert len(set(keys)) == len(keys)
    # What does not reach the features does not make them others.
    same = [dataclasses.replace(teacher, name="x", where="y", loss_lambda=9.0, weights="elsewhere", hidden=3)]
    assert {key(of) for of in same} == {keys[0]}


@given(
    st.integers(0, 2**40), st.integers(0, 2**40), st.sampled_from([(3, 4, 4), (3, 2, 8)]), st.integers(0, 47),
    st.integers(1, 255),
)  # fmt: skip
def test_a_sample_is_its_place_and_its_pixels(a, b, shape, where, by):
    pixels = np.arange(48, dtype=np.uint8).reshape(shape)
    place = np.array([a, b, 3, 4])
    digest = sample_digest(pixels, place)
    again = place.astype(np.int32) if max(a, b) < 2**31 else place
    assert digest == sample_digest(pixels.copy(order="F"), again)
    changed = pixels.copy()
    changed.reshape(-1)[where] ^= by
    others = [
        sample_digest(changed, place),
        sample_digest(pixels.reshape((3, 8, 2)), place),
        sample_digest(pixels, place + [1, 0, 0, 0]),
        sample_digest(pixels, place + [0, 1, 0, 0]),
    ]
    assert len({digest, *others}) == 5
    assert feature_key(digest, others[0]) != feature_key(others[0], digest)


def test_weights_are_known_by_their_bytes(teacher, tmp_path):
    def of(path):
        return weights_hash(dataclasses.replace(teacher, weights=str(path)))

    data = Path(teacher.weights).read_bytes()
    (tmp_path / "copy.safetensors").write_bytes(data)
    (tmp_path / "other.safetensors").write_bytes(data[:-1] + bytes([data[-1] ^ 1]))
    assert of(tmp_path / "copy.safetensors") == of(teacher.weights) != of(tmp_path / "other.safetensors")
    for name, text in (("a", "1"), ("b", "1"), ("c", "2")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.json").write_text(text)
    assert of(tmp_path / "a") == of(tmp_path / "b") != of(tmp_path / "c")
    (tmp_path / "copy.safetensors").write_bytes(data + b"x")
    assert of(tmp_path / "copy.safetensors") != of(teacher.weights)
    with pytest.raises(WeightsError, match="nowhere"):
        of(tmp_path / "nowhere")


def test_an_upsampler_is_known_by_its_bytes(upsampled, save_featsharp, tmp_path):
    teacher = upsampled()
    before = weights_hash(teacher)
    save_featsharp(seed=1)
    another = weights_hash(teacher)
    save_featsharp(seed=0)
    plain = dataclasses.replace(teacher, upsample_factor=1, upsampler_checkpoint=None)
    assert len({before, another, weights_hash(plain)}) == 3 and weights_hash(teacher) == before
    with pytest.raises(WeightsError, match="gone") as caught:
        weights_hash(dataclasses.replace(teacher, upsampler_checkpoint=str(tmp_path / "gone")))
    assert caught.value.problems[0].where == "distill.teacher[0].upsampler_checkpoint"


def test_who_enlarges_the_view_counts(upsampled):
    """128 pixels: an upsampled teacher of 64 averages them down; where sizes are drawn it would enlarge them."""
    teacher = upsampled()
    drawn = dataclasses.replace(teacher, sizes=((64, 1.0),))
    plain = dataclasses.replace(teacher, upsample_factor=1, upsampler_checkpoint=None)
    assert len({teacher_key(of, (4, 4), "float32", "w") for of in (teacher, drawn, plain)}) == 3


def test_of_a_checkpoint_the_student_counts(teacher, tmp_path):
    torch.manual_seed(0)
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        student = Student(StudentArchitecture("test_resnet"))
        save_student(student, student.state_dict(), tmp_path / name)

    def of(name):
        return weights_hash(dataclasses.replace(teacher, weights=str(tmp_path / name)))

    before = of("a")
    (tmp_path / "a" / "optimizer.safetensors").write_bytes(b"moments")
    assert before == of("a") != of("b")


def test_places_follow_the_shard_not_the_row(tmp_path):
    """A source that is added before moves every row number, and no place; a shard that is touched is another."""

    def tar(path, images):
        path.parent.mkdir(exist_ok=True)
        with tarfile.open(path, "w") as out:
            for i in range(images):
                data = io.BytesIO()
                Image.new("RGB", (40 + i, 40), (i, 2, 3)).save(data, "PNG")
                info = tarfile.TarInfo(f"{i}.png")
                info.size = len(data.getvalue())
                out.addfile(info, io.BytesIO(data.getvalue()))

    def places(name, *roots):
        split = SplitConfig(tar_data_sources=[TarSource(str(tmp_path / root)) for root in roots])
        index = build_index(split, "d", tmp_path / name, max_pixels=10**9)
        return SamplePlaces(index)(np.arange(len(index)))

    tar(tmp_path / "a/0.tar", 5)
    tar(tmp_path / "b/0.tar", 3)
    alone, both = places("alone", "a"), places("both", "b", "a")
    assert alone.shape == (5, 4) and len({tuple(p) for p in alone.tolist()}) == 5
    np.testing.assert_array_equal(both[3:], alone)
    found = (tmp_path / "a/0.tar").stat()
    assert set(map(tuple, alone[:, :2].tolist())) == {(found.st_size, found.st_mtime_ns)}
    os.utime(tmp_path / "a/0.tar", ns=(0, found.st_mtime_ns + 10**9))
    assert (places("later", "a")[:, 1] == alone[:, 1] + 10**9).all()
