"""Listing: what is missing is named by folder and field."""

from __future__ import annotations

import os

import pytest

from radioplat.data.scan.sources import list_shards
from radioplat.errors import DataError
from radioplat.spec.schema.dataset import SplitConfig, TarSource


def test_tars_are_found_at_any_depth_and_sorted(tmp_path):
    for name in ("b.tar", "a/z.tar", "a/b/c.tar", "a/.hidden.tar", "a/note.txt"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"12345")
    (source,) = list_shards(SplitConfig(tar_data_sources=[TarSource(str(tmp_path), scale_factor=2.0)]), "dataset.x")
    assert [f.name for f in source.files] == ["a/b/c.tar", "a/z.tar", "b.tar"]
    assert source.files[0].state.size == 5 and source.scale_factor == 2.0 and source.kind == "tar"


def test_links_are_followed_and_circles_end(tmp_path):
    real, root = tmp_path / "real", tmp_path / "root"
    real.mkdir()
    root.mkdir()
    (real / "a.tar").write_bytes(b"x")
    os.symlink(real, root / "corpus")
    os.symlink(root, real / "back")
    (source,) = list_shards(SplitConfig(tar_data_sources=[TarSource(str(root))]), "d")
    assert [f.name for f in source.files] == ["corpus/a.tar"]


def test_every_bad_folder_is_named_with_its_field(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("x")
    split = SplitConfig(tar_data_sources=[TarSource(str(tmp_path / n)) for n in ("gone", "empty", "file")])
    with pytest.raises(DataError) as caught:
        list_shards(split, "dataset.train_dataset")
    problems = caught.value.problems
    assert [p.where for p in problems] == [f"dataset.train_dataset.tar_data_sources[{i}].root_dir" for i in range(3)]
    for problem, name in zip(problems, ("gone", "empty", "file"), strict=True):
        assert str(tmp_path / name) in problem.message


def test_no_data_at_all_is_told():
    with pytest.raises(DataError, match="dataset.val_dataset: no data is given"):
        list_shards(SplitConfig(), "dataset.val_dataset")


def test_an_images_folder(tmp_path):
    for name in ("cat/1.jpg", "dog/2.PNG", "dog/notes.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    (source,) = list_shards(SplitConfig(images_dir=str(tmp_path)), "d")
    assert source.kind == "image" and [f.name for f in source.files] == ["cat/1.jpg", "dog/2.PNG"]
    with pytest.raises(DataError, match="d.images_dir"):
        list_shards(SplitConfig(images_dir=str(tmp_path / "gone")), "d")


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("shards/{000..003}.tar", "Name the folder of the shards, {}/shards: all below it are read"),
        ("shards/a-*.tar", "Name the folder of the shards, {}/shards: all below it are read"),
        ("shards/a.tar", "Name the folder of the shards, {}/shards: all below it are read"),
        (
            "pictures",
            "It contains images: `radioplat pack {}/pictures SHARDS` writes shards of them; or name it in images_dir",
        ),
        ("nothing", "Name the folder of the data"),
    ],
)
def test_what_other_programs_take_for_shards_is_answered_with_what_to_name(tmp_path, name, hint):
    (tmp_path / "shards").mkdir()
    (tmp_path / "shards" / "a.tar").write_bytes(b"x")
    (tmp_path / "pictures" / "cat").mkdir(parents=True)
    (tmp_path / "pictures" / "cat" / "1.jpg").write_bytes(b"x")
    with pytest.raises(DataError) as caught:
        list_shards(SplitConfig(tar_data_sources=[TarSource(str(tmp_path / name))]), "d")
    assert caught.value.problems[0].hint == hint.format(tmp_path) + "."
