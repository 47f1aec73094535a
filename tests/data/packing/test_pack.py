"""Loose images to shards: nothing lost, nothing on both sides, the same bytes again."""

from __future__ import annotations

import csv
import json
import os
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import webdataset
from hypothesis import given, settings
from hypothesis import strategies as st

from radioplat.cli import main as cli
from radioplat.data.index.build import build_index
from radioplat.data.packing.inputs import Entry, ExaminedFile
from radioplat.data.packing.pack import PackOptions, _distribute, _held_out, pack, pack_options
from radioplat.errors import DataError, SpecError
from radioplat.spec.schema.dataset import SplitConfig, TarSource

CLASSES = ("bird", "cat", "dog")
SMALL = PackOptions(samples_per_shard=10, val_fraction=0.2, workers=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory, photo) -> Path:
    """60 images in three classes, 5 of them twice, and six that are none."""
    root = tmp_path_factory.mktemp("loose")
    for number in range(60):
        data = photo(30 + number, 40, "PNG" if number % 7 == 0 else "JPEG")
        path = root / CLASSES[number % 3] / f"{number:03}.{'png' if number % 7 == 0 else 'jpg'}"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(data)
        if number % 12 == 0:
            (root / CLASSES[number % 3] / f"again_{number}.jpeg").write_bytes(data)
    whole = photo(90, 90)
    for name, data in {
        "cut.jpg": whole[: len(whole) // 2],
        "empty.jpg": b"",
        "text.png": b"no image",
        "notes.txt": b"ignored",
    }.items():
        (root / "cat" / name).write_bytes(data)
    return root


def samples(folder: Path) -> list[dict]:
    shards = sorted(str(path) for path in folder.glob("*.tar"))
    return list(webdataset.WebDataset(shards, shardshuffle=False, empty_check=False))


def state(out: Path) -> dict[str, bytes]:
    return {str(p.relative_to(out)): p.read_bytes() for p in sorted(out.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def packed(folder, tmp_path_factory):
    return pack(folder, tmp_path_factory.mktemp("out"), SMALL)


def test_every_image_is_packed_or_named(packed, folder):
    assert sum(packed.images.values()) == 65 and packed.duplicates == 5 and packed.classes == list(CLASSES)
    assert packed.bad == {"corrupt_image": 1, "empty_file": 1, "not_an_image": 1}
    rows = list(csv.DictReader((packed.folder / "rejected.csv").open()))
    assert {Path(row["path"]).name: row["reason"] for row in rows} == {
        "cut.jpg": "corrupt_image",
        "empty.jpg": "empty_file",
        "text.png": "not_an_image",
    }
    found = Counter()
    for split in ("train", "val"):
        for sample in samples(packed.folder / split):
            sidecar = json.loads(sample["json"])
            image = sample.get("jpg") or sample["png"]
            path = folder / sidecar["label_name"] / sidecar["file"]
            assert path.read_bytes() == image and CLASSES[sidecar["label"]] == sidecar["label_name"]
            found[str(path)] += 1
    assert len(found) == 65 and set(found.values()) == {1}


def test_no_content_is_on_both_sides_and_val_has_its_share_of_each_class(packed):
    of = {s: [json.loads(x["json"]) for x in samples(packed.folder / s)] for s in ("train", "val")}
    assert not {x["sha256"] for x in of["train"]} & {x["sha256"] for x in of["val"]}
    unique = Counter(label for _, label in {(x["sha256"], x["label"]) for x in of["val"]})
    assert unique == {0: 4, 1: 4, 2: 4}


def test_shards_are_balanced(packed):
    shards = [
        samples_of for path in sorted((packed.folder / "train").glob("*.tar")) if (samples_of := samples_in(path))
    ]
    assert len(shards) == packed.shards["train"] == 6
    counts = [len(shard) for shard in shards]
    assert max(counts) - min(counts) <= 1
    for label in range(3):
        per_shard = [sum(json.loads(s["json"])["label"] == label for s in shard) for shard in shards]
        assert max(per_shard) - min(per_shard) <= 2
    sizes = [sum(len(s.get("jpg") or s["png"]) for s in shard) for shard in shards]
    assert max(sizes) < 1.25 * min(sizes)
    first = [json.loads(s["json"])["label"] for s in shards[0]]
    assert first != sorted(first)


def samples_in(path: Path) -> list[dict]:
    return list(webdataset.WebDataset(str(path), shardshuffle=False))


def test_the_index_reads_what_was_packed(packed, tmp_path):
    split = SplitConfig(tar_data_sources=[TarSource(str(packed.folder / "train"))])
    index = build_index(split, "d", tmp_path, max_pixels=10**9)
    assert len(index) == packed.images["train"] and not len(index.faults)
    assert set(index.label.tolist()) == {0, 1, 2} and all(index.texts(list(range(len(index))), "hash"))


def test_packing_again_changes_nothing_and_elsewhere_gives_the_same_bytes(packed, folder, tmp_path):
    before = {p: (p.stat().st_mtime_ns) for p in packed.folder.rglob("*.tar")}
    again = pack(folder, packed.folder, SMALL)
    assert again.kept == len(before) and {p: p.stat().st_mtime_ns for p in packed.folder.rglob("*.tar")} == before
    pack(folder, tmp_path, SMALL)
    assert {k: v for k, v in state(tmp_path).items() if k.endswith(".tar")} == {
        k: v for k, v in state(packed.folder).items() if k.endswith(".tar")
    }


def test_a_killed_packing_goes_on(packed, folder, tmp_path, monkeypatch):
    class Killed(BaseException):
        pass

    def stop_in(what, at):
        def progress(stage, done, total):
            if stage == what and done >= at:
                raise Killed

        return progress

    with pytest.raises(Killed):
        pack(folder, tmp_path, SMALL, stop_in("examine", 1))
    with pytest.raises(Killed):
        pack(folder, tmp_path, SMALL, stop_in("write", 25))
    assert len(list(tmp_path.rglob("*.tar"))) == 3
    with (tmp_path / ".pack" / "decoded.jsonl").open("a") as notes:
        notes.write('{"path": "/half')  # a line that was being written
    read: list[str] = []
    monkeypatch.setattr("radioplat.data.packing.inputs.image_header", lambda data: read.append("looked at again"))
    result = pack(folder, tmp_path, SMALL)
    assert result.kept == 3 and read == []
    assert {k: v for k, v in state(tmp_path).items() if k.endswith(".tar")} == {
        k: v for k, v in state(packed.folder).items() if k.endswith(".tar")
    }


def test_another_packing_does_not_mix_with_the_first(packed, folder):
    with pytest.raises(DataError, match="shards of another packing"):
        pack(folder, packed.folder, PackOptions(samples_per_shard=10, val_fraction=0.3))


def test_a_table_of_images(folder, tmp_path, capfd):
    (tmp_path / "in").mkdir()
    os.symlink(folder, tmp_path / "in" / "images")
    lines = ["image,label,caption", "images/cat/001.jpg,tabby,a cat", "images/dog/002.jpg,,", "images/gone.jpg,x,y"]
    (tmp_path / "in" / "table.csv").write_text("\n".join(lines))
    out = tmp_path / "out"
    assert cli.main(["pack", str(tmp_path / "in" / "table.csv"), str(out), "val_fraction=0"]) == 0
    printed, err = capfd.readouterr()
    assert "1 missing" in printed and "2" in printed and "examine: image 3/3" in err
    found = sorted((json.loads(s["json"]) for s in samples(out / "train")), key=lambda s: s["file"])
    assert [(s.get("label_name"), s.get("label"), s.get("caption")) for s in found] == [
        ("tabby", 0, "a cat"),
        (None, None, None),
    ]
    assert not (out / "val").exists()


@pytest.mark.parametrize(
    "make, words",
    [
        (lambda path: None, "does not exist"),
        (lambda path: path.write_text("a,b\n1,2\n"), "has no path column"),
        (lambda path: path.write_text("path,label\n"), "names no image"),
        (lambda path: path.write_bytes(b"\xff\xfe\x00path"), "no table of images"),
        (lambda path: (path.mkdir(), (path / "a.jpg").write_bytes(b"x")), "none of the images can be packed"),
    ],
)
def test_what_cannot_be_packed_at_all(tmp_path, make, words):
    make(tmp_path / "in")
    with pytest.raises(DataError, match=words):
        pack(tmp_path / "in", tmp_path / "out")


def test_a_folder_that_cannot_be_created(folder, tmp_path, capfd):
    (tmp_path / "file").write_text("")
    for out in (Path("/proc/x"), tmp_path / "file" / "shards"):
        with pytest.raises(DataError, match="cannot create the folder") as caught:
            pack(folder, out)
        assert caught.value.problems[0].where == "out" and str(out) in str(caught.value)
        assert cli.main(["pack", str(folder), str(out)]) == 1
        assert "Traceback" not in capfd.readouterr().err


def test_options():
    assert pack_options(["samples_per_shard=7", "verify=false"]) == PackOptions(samples_per_shard=7, verify=False)
    for wrong in ("samples_per_shard=0", "val_fraction=1", "shards=3", "seed=x"):
        with pytest.raises(SpecError, match=wrong.partition("=")[0]):
            pack_options([wrong])


@settings(max_examples=60, deadline=None)
@given(
    st.lists(st.tuples(st.integers(0, 3), st.integers(0, 15), st.integers(1, 9)), min_size=1, max_size=60),
    st.integers(1, 9),
    st.floats(0, 0.9),
)
def test_any_input_is_dealt_whole_and_evenly(rows, per_shard, fraction):
    good = [
        (Entry(f"{i:03}", f"c{label}"), ExaminedFile(f"{i:03}", size, 0, f"h{digest}"))
        for i, (label, digest, size) in enumerate(rows)
    ]
    options = PackOptions(samples_per_shard=per_shard, val_fraction=fraction)
    val = _held_out(good, options)
    assert val <= {f.sha256 for _, f in good} and (fraction > 0 or not val)
    shards = _distribute(good, list(range(len(good))), options)
    assert sorted(i for shard in shards for i in shard) == list(range(len(good)))
    counts = np.array([len(shard) for shard in shards])
    assert counts.max() <= per_shard and counts.max() - counts.min() <= 1
    assert len(shards) == -(-len(good) // per_shard)
