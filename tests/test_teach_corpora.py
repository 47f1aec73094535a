"""The corpora of `benchmarks.teach`: their splits share no pixel, the same seed gives the same bytes."""

from __future__ import annotations

import gzip
import hashlib
import shutil
import subprocess
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from benchmarks.teach.corpora import make, scene_crops, write_lessons
from benchmarks.teach.pictures import CELL, GAP, PACKAGES, Picture, crop, pictures, split
from radioplat.errors import DataError
from radioplat.quickstart.photographs import random_box

ROOT = Path(__file__).parents[1]


def noise(seed: int, width: int = CELL[0] * 3 + 20, height: int = CELL[1] * 2 + 10) -> Image.Image:
    """A picture with detail everywhere: random blocks of 24 pixels."""
    blocks = np.random.default_rng(seed).integers(0, 256, (-(-height // 24), -(-width // 24), 3), dtype=np.uint8)
    return Image.fromarray(blocks.repeat(24, 0).repeat(24, 1)[:height, :width])


def test_the_splits_share_no_pixel():
    scenes, lessons = split([Picture("noise", noise(0))], 3)
    boxes = [box for scene in scenes for box in (scene.bank, scene.queries)] + [lesson.box for lesson in lessons]
    taken = np.zeros((noise(0).height, noise(0).width), int)
    for left, top, right_, bottom in boxes:
        # Half a gap around each: no two are nearer to each other than a gap.
        taken[top - GAP // 2 : bottom + GAP // 2, left - GAP // 2 : right_ + GAP // 2] += 1
    assert len(boxes) == 9 and taken.max() == 1
    rng = np.random.default_rng(0)
    for left, top, right_, bottom in boxes:
        for _ in range(50):
            x, y, x_end, y_end = random_box((left, top, right_, bottom), (50, 500), (0.7, 1.4), rng)
            assert left <= x < x_end <= right_ and top <= y < y_end <= bottom


@pytest.mark.parametrize("part", ["bank", "queries", "train"])
def test_a_crop_depends_on_no_pixel_of_another_split(tmp_path, part):
    """All other pixels are replaced; the crops stay, byte for byte."""
    one, two = noise(0), noise(1)
    scenes, lessons = split([Picture("noise", one)], 3)
    own = [lesson.box for lesson in lessons] if part == "train" else [getattr(scene, part) for scene in scenes]
    for box in own:
        two.paste(one.crop(box), box[:2])
    found = []
    for number, image in enumerate((one, two)):
        shown = [Picture("noise", image)]
        if part == "train":
            write_lessons(tmp_path / str(number), shown, lessons, 6, seed=1)
            found.append((tmp_path / str(number) / "train-000000.tar").read_bytes())
        else:
            arrays = scene_crops(shown, scenes, 2, 2, seed=1)
            found.append(arrays[f"{part}.images"].tobytes())
            other = "queries" if part == "bank" else "bank"
            found.append(arrays[f"{other}.images"].tobytes())
    if part == "train":
        assert found[0] == found[1]
    else:
        assert found[0] == found[2] and found[1] != found[3]


def test_flat_cells_are_no_scenes_and_too_few_are_refused():
    flat = Picture("flat", Image.new("RGB", (CELL[0] * 3, CELL[1] * 2), (90, 120, 40)))
    scenes, _ = split([flat, Picture("noise", noise(0))], 3)
    assert {scene.picture for scene in scenes} == {1}
    with pytest.raises(DataError, match="have 3 scenes, and 4 were asked for"):
        split([flat, Picture("noise", noise(0))], 4)


def test_a_crop_of_little_is_drawn_again():
    image = Image.new("RGB", (496, 344), (90, 120, 40))
    image.paste(noise(5, 150, 344), (0, 0))
    stds = [
        np.asarray(crop(image, (0, 0, 496, 344), np.random.default_rng(n), True), float).std((0, 1)).max()
        for n in range(20)
    ]
    assert min(stds) > 2


@pytest.fixture(scope="module")
def debs(tmp_path_factory) -> Path:
    """Small packages with the names of Debian's: pictures in two sizes and two lights, garments in IDX."""
    if shutil.which("dpkg-deb") is None:
        pytest.skip("dpkg-deb is not on this machine")
    folder = tmp_path_factory.mktemp("debs")
    rng = np.random.default_rng(9)
    for number, package in enumerate(PACKAGES):
        root = folder / "roots" / package
        (root / "DEBIAN").mkdir(parents=True)
        (root / "DEBIAN" / "control").write_text(
            f"Package: {package}\nVersion: 1.{number}\nArchitecture: all\n"
            "Maintainer: A <a@example.org>\nDescription: test\n"
        )
        if package == "dataset-fashion-mnist":
            place = root / "usr/share/datasets/fashion-mnist"
            place.mkdir(parents=True)
            for part in ("train", "t10k"):
                images, labels = rng.integers(0, 256, (40, 28, 28), np.uint8), np.tile(np.arange(10, dtype=np.uint8), 4)
                for kind, array in (("images-idx3", images), ("labels-idx1", labels)):
                    header = bytes([0, 0, 8, array.ndim]) + np.array(array.shape, ">u4").tobytes()
                    (place / f"{part}-{kind}-ubyte.gz").write_bytes(gzip.compress(header + array.tobytes()))
        else:
            place = root / "usr/share/wallpapers/One/contents/images"
            place.mkdir(parents=True)
            picture = noise(20 + number)
            picture.save(place / f"{picture.width}x{picture.height}.png")
            picture.resize((600, 400)).save(place / "600x400.png")
            picture.resize((300, 200)).save(place / "screenshot.png")
        subprocess.run(
            ["dpkg-deb", "-b", root, folder / f"{package}_1.{number}_all.deb"], check=True, capture_output=True
        )
    return folder


COUNTS = {"crops": 20, "scenes": 6, "bank": 2, "queries": 2, "garments": 20, "composites": 4}


def test_the_same_seed_gives_the_same_bytes(tmp_path, debs):
    made = [make(tmp_path / name, COUNTS, seed, debs) for name, seed in (("a", 1), ("b", 1), ("c", 2))]
    assert made[0]["sha256"] == made[1]["sha256"] and len(made[0]["sha256"]) == 4
    assert all(made[0]["sha256"][name] != digest for name, digest in made[2]["sha256"].items())
    for name, digest in made[0]["sha256"].items():
        assert hashlib.sha256((tmp_path / "a" / name).read_bytes()).hexdigest() == digest
    assert made[0]["pictures"] == 3 and made[0]["packages"]["mate-backgrounds"] == "1.1"
    assert make(tmp_path / "a", COUNTS, 1, tmp_path / "nothing") == made[0]  # it is there: nothing is unpacked
    with np.load(tmp_path / "a" / "composites.npz") as composites:
        assert composites["bank.images"].shape == (4, 192, 192, 3) and composites["queries.masks"].max() > 0
    with np.load(tmp_path / "a" / "fashion.npz") as fashion:
        assert np.bincount(fashion["queries.labels"]).tolist() == [2] * 10


def test_a_package_that_is_missing_or_damaged_is_named(tmp_path, debs):
    with pytest.raises(DataError, match="no gnome-backgrounds_"):
        make(tmp_path / "a", COUNTS, 1, tmp_path)
    broken = tmp_path / "debs"
    broken.mkdir()
    (broken / "gnome-backgrounds_1_all.deb").write_bytes(b"no archive")
    with pytest.raises(DataError, match="cannot unpack"):
        make(tmp_path / "a", COUNTS, 1, broken)


def test_a_machine_without_apt_is_told_what_to_do(tmp_path, monkeypatch):
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match="Debian's packages gnome-backgrounds") as caught:
        make(tmp_path / "a", COUNTS, 1)
    assert "--debs" in str(caught.value)


def test_one_of_two_variants_is_taken(tmp_path):
    place = tmp_path / "gnome-backgrounds/usr/share/backgrounds/gnome"
    place.mkdir(parents=True)
    picture = noise(3, 1200, 800)
    picture.save(place / "hill-l.png")
    picture.point([value // 3 for value in range(256)] * 3).save(place / "hill-d.png")
    picture.resize((900, 600)).save(place / "other_name.jpg")  # the same picture by another name
    noise(4, 900, 600).save(place / "valley.webp")
    transparent = noise(5, 900, 600)
    transparent.putalpha(100)
    transparent.save(place / "glass.png")
    (place / "drawing.svg").write_text("<svg/>")
    found = pictures(tmp_path)
    assert [picture.name for picture in found] == ["gnome-backgrounds/hill", "gnome-backgrounds/valley"]
    assert np.asarray(found[0].image).mean() > 100  # the light one
