"""``radioplat.embed`` and ``predict``: tables of a folder that other programs read, and images that are refused."""

from __future__ import annotations

import numpy as np
import pyarrow.parquet as pq
import pytest
import skimage.data
import torch
from PIL import Image

import radioplat
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.models.vision_model import save_model

SCENES = {"a/astronaut": skimage.data.astronaut, "a/cat": skimage.data.chelsea, "coffee": skimage.data.coffee}
NAMES = ("house", "cat", "cup", "sky")


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Three photographs, two of them in a sub-folder, and two files that are none."""
    root = tmp_path_factory.mktemp("images")
    (root / "a").mkdir()
    for name, scene in SCENES.items():
        Image.fromarray(scene()).save(root / f"{name}.png")
    (root / "cut.png").write_bytes((root / "coffee.png").read_bytes()[:5000])
    (root / "text.jpg").write_bytes(b"no image")
    return root


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """The results folder of a run: a classifier in a checkpoint."""
    torch.manual_seed(0)
    classifier = Student(StudentArchitecture("resnet10t", img_size=64, num_classes=4, class_names=NAMES)).eval()
    torch.nn.init.normal_(classifier.backbone.model.get_classifier().weight)
    results = tmp_path_factory.mktemp("results")
    save_model(classifier, results / "train" / "model_epoch_000")
    (results / "train" / "model_latest").symlink_to("model_epoch_000")
    return results


@pytest.fixture(scope="module")
def checkpoint(run):
    return run / "train" / "model_latest"


def test_a_folder_becomes_a_table_that_other_programs_read(folder, checkpoint, tmp_path, capfd):
    made = radioplat.embed(checkpoint, folder, out=tmp_path / "new" / "features.parquet", maps=True, batch_size=2)
    assert made.path == tmp_path / "new" / "features.parquet" and made.images == 5
    assert set(made.errors) == {"cut.png", "text.jpg"} and "not_an_image" in made.errors["text.jpg"]
    assert "2 of 5 images cannot be read; the first is cut.png" in capfd.readouterr().err
    assert [path.name for path in made.path.parent.iterdir()] == ["features.parquet"]
    table = pq.read_table(made.path)
    assert table.column_names == ["image", "error", "width", "height", "summary", "spatial", "spatial_shape"]
    frame = pytest.importorskip("pandas").read_parquet(made.path).set_index("image")
    assert list(frame.index) == ["a/astronaut.png", "a/cat.png", "coffee.png", "cut.png", "text.jpg"]
    assert frame.loc["cut.png", "error"] == made.errors["cut.png"] and frame["error"].isna().sum() == 3
    whole = radioplat.embed(checkpoint, folder, maps=True)
    summaries = np.stack(frame.loc[frame["error"].isna(), "summary"])
    np.testing.assert_allclose(summaries, whole.summary[:3], rtol=1e-5)
    cat = frame.loc["a/cat.png"]
    np.testing.assert_allclose(cat["spatial"].reshape(cat["spatial_shape"]), whole.spatial[1], rtol=1e-4, atol=1e-5)
    assert capfd.readouterr() == ("", ""), "nothing is printed unless a file is written"


def test_predictions_of_a_folder(folder, checkpoint, tmp_path, capfd):
    made = radioplat.predict(checkpoint, folder, out=str(tmp_path / "classes.parquet"), top_k=2, progress=False)
    assert capfd.readouterr() == ("", "")
    rows = pq.read_table(made.path).to_pylist()
    assert list(rows[0]) == ["image", "error", "width", "height", "labels", "class_names", "scores"]
    whole = radioplat.predict(checkpoint, folder, top_k=2)
    assert [row["class_names"] for row in rows[:3]] == [list(each.class_names) for each in whole[:3]]
    np.testing.assert_allclose([row["scores"] for row in rows[:3]], [each.scores for each in whole[:3]], rtol=1e-5)
    assert rows[3]["labels"] is None and rows[3]["error"]


def test_progress_counts_the_images(folder, checkpoint, tmp_path, monkeypatch):
    import contextlib

    counted: list[tuple[int, int]] = []
    counting = contextlib.nullcontext(lambda done, total: counted.append((done, total)))
    monkeypatch.setattr("radioplat.common.terminal.counting", lambda label: counting)
    radioplat.embed(checkpoint, folder, out=tmp_path / "f.parquet", batch_size=2)
    assert counted == [(2, 5), (4, 5), (5, 5)]
    radioplat.embed(checkpoint, folder)
    radioplat.embed(checkpoint, folder, out=tmp_path / "f.parquet", progress=False)
    assert len(counted) == 3


@pytest.mark.parametrize("form", ["uint8", "floats", "list"])
def test_tensors_give_what_arrays_give(form, checkpoint):
    arrays = np.stack([scene()[:300, :400] for scene in (skimage.data.coffee, skimage.data.astronaut)])
    tensors = torch.from_numpy(arrays).permute(0, 3, 1, 2)
    given = {"uint8": tensors, "floats": tensors.float() / 255, "list": [tensors[0], tensors[1].float() / 255]}[form]
    np.testing.assert_array_equal(
        radioplat.embed(checkpoint, given).summary, radioplat.embed(checkpoint, arrays).summary
    )


WRONG = {
    "normalised": (torch.rand(1, 3, 64, 64) * 4 - 2, "leave your own normalisation out"),
    "channels last": (torch.rand(1, 64, 64, 3), "images.permute(0, 3, 1, 2)"),
    "floats": (np.zeros((1, 64, 64, 3)), "(image * 255).round().astype(np.uint8)"),
    "channels first": (np.zeros((1, 3, 64, 64), np.uint8), "image.transpose(1, 2, 0)"),
    "grey": (np.zeros((1, 64, 64, 1), np.uint8), "its channel three times"),
    "one": (np.zeros((64, 64, 3), np.uint8), "3 axes instead of the four of [N, H, W, 3]"),
    "pillow": ([Image.new("RGB", (64, 64))], "np.asarray makes an array"),
    "one of pillow": (Image.new("RGB", (64, 64)), "np.asarray makes an array"),
    "generator": ((name for name in ("a.jpg",)), "list(images)"),
    "nothing": ([], "there are no images"),
    "no folder": ("/nowhere/images", "/nowhere/images"),
}


@pytest.mark.parametrize(("images", "words"), WRONG.values(), ids=list(WRONG))
def test_wrong_images_are_errors_with_advice(images, words, checkpoint, tmp_path):
    for out in (None, tmp_path / "f.parquet"):
        with pytest.raises(radioplat.RadioplatError) as caught:
            radioplat.embed(checkpoint, images, out=out)
        assert caught.value.problems[0].where.startswith("images") and "images_dir" not in str(caught.value)
        assert words in str(caught.value) and not list(tmp_path.iterdir())


def test_a_file_that_cannot_be_written(folder, checkpoint, tmp_path):
    (tmp_path / "is_file").touch()
    (tmp_path / "is_folder.parquet").mkdir()
    for name, words in (
        ("f.csv", "Name it f.parquet"),
        ("is_folder.parquet", "is a folder"),
        ("is_file/f.parquet", "cannot be written"),
    ):
        with pytest.raises(radioplat.RadioplatError, match=words):
            radioplat.embed(checkpoint, folder, out=tmp_path / name)


def test_no_readable_image_leaves_no_file(folder, checkpoint, tmp_path):
    with pytest.raises(radioplat.RadioplatError, match=r"no image can be read; .*text.jpg: not_an_image"):
        radioplat.embed(checkpoint, [folder / "text.jpg"], out=tmp_path / "f.parquet")
    assert not list(tmp_path.iterdir())


def test_the_folder_of_a_run_is_answered_with_its_checkpoint(run, folder, tmp_path):
    for path in (run, run / "train"):
        for use in (radioplat.load_student, lambda given: radioplat.embed(given, folder)):
            with pytest.raises(radioplat.RadioplatError, match=f"There is one in it: {run}/train/model_latest"):
                use(path)
    for nothing in (None, 3):
        with pytest.raises(radioplat.RadioplatError, match="not a path"):
            radioplat.load_student(nothing)
        with pytest.raises(radioplat.RadioplatError, match="not a model"):
            radioplat.embed(nothing, folder)
    (tmp_path / "student.onnx").touch()
    with pytest.raises(radioplat.RadioplatError, match=r"radioplat.embed and radioplat.predict run such a file"):
        radioplat.load_student(tmp_path / "student.onnx")
