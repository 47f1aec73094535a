"""Views of loose images are those of an evaluation; what cannot be read keeps its place, with the reason."""

from __future__ import annotations

import io
import os
import socket

import numpy as np
import pytest
import skimage.data
from PIL import Image

from radioplat.data.index.build import build_index
from radioplat.data.loading.image_files import given_images, images_in, view_batches
from radioplat.data.loading.sample_images import evaluation_images
from radioplat.errors import DataError
from radioplat.spec.schema.dataset import DatasetConfig, SplitConfig

SIZE = 48


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """JPEGs, one of them turned by EXIF, a PNG with transparency, and three files that are no whole image."""
    root = tmp_path_factory.mktemp("images")
    (root / "cats").mkdir()
    Image.fromarray(skimage.data.astronaut()).save(root / "a.jpg")  # four times the view, so it is decoded reduced
    turned = Image.fromarray(skimage.data.coffee())
    exif = turned.getexif()
    exif[274] = 6
    turned.save(root / "b.jpg", exif=exif)
    cat = Image.fromarray(skimage.data.chelsea()).convert("RGBA")
    cat.putalpha(128)
    cat.save(root / "cats/c.png")
    (root / "cats/cut.jpg").write_bytes((root / "a.jpg").read_bytes()[:3000])
    (root / "empty.png").write_bytes(b"")
    (root / "text.jpg").write_bytes(b"no image")
    return root


@pytest.mark.parametrize("whole", [False, True])
def test_views_are_those_of_an_evaluation(folder, tmp_path, whole):
    """Decoded and cut by the reader that evaluations use."""
    split = SplitConfig(images_dir=str(folder))
    index = build_index(split, "d", tmp_path / "index", max_pixels=10**9)
    (batch,) = evaluation_images(DatasetConfig(workers=1), split, index, {SIZE}, 16, None, whole).batches()
    images = images_in(str(folder), "d.images_dir")
    ours = [view for part in view_batches(images, SIZE, 4, whole=whole, threads=2) for view in part]
    names = [view.image.name for view in ours]
    assert names == ["a.jpg", "b.jpg", "cats/c.png", "cats/cut.jpg", "empty.png", "text.jpg"]
    read = [view.pixels for view in ours if view.pixels is not None]
    assert len(read) == 3 and np.array_equal(np.stack(read), batch.views[str(SIZE)].pixels[batch.weight > 0])
    errors = [view.error.partition(":")[0] for view in ours]
    assert errors == ["", "", "", "corrupt_image", "not_an_image", "not_an_image"]
    height, width = skimage.data.coffee().shape[:2]
    assert (ours[1].width, ours[1].height) == (height, width), "upright"
    assert (ours[3].width, ours[3].pixels) == (0, None)


def test_arrays_are_cut_as_files_are(folder):
    """A PNG without transparency has the same pixels as its array; Pillow resizes to the same within rounding."""
    pixels = skimage.data.chelsea()
    file = io.BytesIO()
    Image.fromarray(pixels).save(file, "PNG")
    path = folder.parent / "cat.png"
    path.write_bytes(file.getvalue())
    ((of_file, of_array),) = view_batches(given_images([path, pixels]), SIZE, 8)
    assert np.array_equal(of_file.pixels, of_array.pixels)
    height, width = pixels.shape[:2]
    first = (width - height) // 2  # 75 of 75.5; pixels outside of the crop have no part in it
    cut = Image.fromarray(pixels[:, first : first + height + 1])
    pillow = cut.resize((SIZE, SIZE), Image.Resampling.BILINEAR, box=(0.5, 0, height + 0.5, height))
    assert np.abs(of_array.pixels.transpose(1, 2, 0).astype(int) - np.asarray(pillow)).max() <= 1
    assert (of_array.image.name, of_file.image.name) == ("1", str(path))


def test_an_image_over_the_limit_or_gone_is_named(folder):
    images = given_images([folder / "a.jpg", folder / "nowhere.jpg"])
    ((large, gone),) = view_batches(images, SIZE, 8, max_pixels=1000)
    assert large.error == "too_many_pixels: 512x512" and gone.error.startswith("missing_file: No such file")


def special_files(folder) -> dict[str, str]:
    """A pipe, a socket and a folder in ``folder``, and what a user calls them."""
    os.mkfifo(folder / "pipe.jpg")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(folder / "socket.jpg"))
    (folder / "folder.jpg").mkdir()
    return {str(folder / f"{kind}.jpg"): f"a {kind}" for kind in ("pipe", "socket", "folder")} | {
        "/dev/null": "a device"
    }


def test_what_is_no_file_is_named_and_not_opened(tmp_path):
    kinds = special_files(tmp_path)
    (views,) = view_batches(given_images(list(kinds)), SIZE, 8)
    assert [view.image.name for view in views] == list(kinds)
    for view, kind in zip(views, kinds.values(), strict=True):
        advice = "; give its files, or the folder alone" if kind == "a folder" else ""
        assert view.error == f"not_a_file: it is {kind}{advice}"
    with pytest.raises(DataError, match="d.images_dir: the folder .*pipe.jpg is a pipe, not a folder"):
        images_in(str(tmp_path / "pipe.jpg"), "d.images_dir")
    ((pipe,),) = view_batches(given_images(tmp_path / "pipe.jpg"), SIZE, 8)
    assert pipe.error == "not_a_file: it is a pipe"


def test_a_path_below_the_home_folder(folder, monkeypatch):
    monkeypatch.setenv("HOME", str(folder))
    ((view,),) = view_batches(given_images("~/a.jpg"), SIZE, 8)
    assert view.pixels is not None
    assert len(given_images("~/cats")) == 2


@pytest.mark.parametrize(
    ("images", "says"),
    [
        ("nowhere", "does not exist"),
        ([], "there are no images"),
        (np.zeros((4, 4, 3), np.uint8), "3 axes instead of the four"),
        (np.zeros((2, 3, 8, 8), np.uint8), r"images\[0\]: uint8 \[3, 8, 8\] is not an image"),
        ([np.zeros((8, 8, 3), np.float32)], r"images\[0\]: float32 \[8, 8, 3\] is not an image"),
        ([None], "NoneType is not an image"),
        (7, "int is not a list of images"),
    ],
)
def test_what_is_no_image_is_refused(images, says):
    with pytest.raises(DataError, match=says):
        given_images(images)


def test_batches_come_in_order_and_the_last_is_shorter():
    grey = [np.full((8, 8, 3), i, np.uint8) for i in range(11)]
    batches = list(view_batches(given_images(grey), 8, 4, threads=3))
    assert [len(batch) for batch in batches] == [4, 4, 3]
    assert [int(view.pixels[0, 0, 0]) for batch in batches for view in batch] == list(range(11))
