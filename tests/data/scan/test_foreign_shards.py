"""Shards as other programs write them: the same samples as webdataset reads, or a fault that names what is left out."""

from __future__ import annotations

import io
import json
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path

import pytest
import webdataset
from hypothesis import example, given, settings
from hypothesis import strategies as st
from webdataset.autodecode import IMAGE_EXTENSIONS as IMAGES_OF_WEBDATASET
from webdataset.tariterators import base_plus_ext

from radioplat.data.scan.names import split_name
from radioplat.data.scan.shard import scan_tar
from radioplat.data.storage.files import read_range
from radioplat.spec.resolved.image_extension import image_extension
from radioplat.spec.schema.dataset import TarSource

Members = list[tuple[str, bytes]]
JSON = b'{"label": 3, "sha256": "s", "caption": "a cup"}'


def read_by_webdataset(path: Path) -> list[dict]:
    return list(webdataset.WebDataset(str(path), shardshuffle=False))


def image_of(sample: dict) -> bytes | None:
    """The only image of one of webdataset's samples, chosen by plain extensions before others; None if it has none."""
    images = {k: v for k, v in sample.items() if k.rpartition(".")[2] in IMAGES_OF_WEBDATASET and k[:2] != "__"}
    plain = [v for k, v in images.items() if "." not in k] or list(images.values())
    assert len(plain) < 2
    return plain[0] if plain else None


def read_by_us(path: Path, image_extension: str | None = None) -> tuple[list[tuple[str, bytes]], list[dict]]:
    scan = scan_tar(str(path), image_extension)
    assert not scan.faults
    rows = scan.rows.to_pylist()
    return [(row["key"], read_range(str(path), row["offset"], row["length"])) for row in rows], rows


def assert_same(path: Path) -> int:
    """Compare keys, image bytes and what the sidecars say; return the number of samples."""
    theirs = [sample for sample in read_by_webdataset(path) if image_of(sample)]
    ours, rows = read_by_us(path)
    assert ours == [(sample["__key__"], image_of(sample)) for sample in theirs]
    for sample, row, member in zip(theirs, rows, scan_tar(str(path)).sidecars, strict=True):
        sidecar = json.loads(sample.get("json", b"{}"))
        assert (read_range(str(path), member.offset, member.size) if member else None) == sample.get("json")
        label = sidecar.get("label", int(sample.get("cls", b"-1")))
        assert (row["given_label"], row["hash"]) == (label, sidecar.get("sha256"))
        assert (row["caption_offset"] >= 0) == ("caption" in sidecar)
    return len(theirs)


@pytest.fixture(scope="module")
def picture(photo) -> Callable[[int], bytes]:
    """picture(i) -> bytes of an image, others for each i."""
    return lambda i: photo(40 + i, 30)


def samples(names: list[str], picture) -> Members:
    """For each name without its extension an image, a JSON and a class."""
    found: Members = []
    for i, name in enumerate(names):
        found += [(f"{name}.jpg", picture(i)), (f"{name}.json", JSON), (f"{name}.cls", b"%d" % i)]
    return found


def layouts(picture) -> dict[str, Members]:
    """Members of shards by what is unusual about their names."""
    one = picture(0)
    return {
        "img2dataset": [
            (f"{i:09d}.{kind}", data)
            for i in range(3)
            for kind, data in (("jpg", picture(i)), ("json", JSON), ("txt", b"a cup"))
        ],
        "part after a dot": [("img.001.jpg", one), ("photo.v2.JPEG", picture(1)), ("x.a.b.c.png", picture(2))],
        "one image in parts": [("0.rgb.jpg", one), ("0.json", JSON), ("1.rgb.jpg", picture(1)), ("1.cls", b"7")],
        "plain before parts": [("0.depth.png", one), ("0.jpg", picture(1)), ("0.mask.png", one), ("0.json", JSON)],
        "folders": samples(["a/b/x", "a/b/y", "a.b/x", "b/x", "a/c.d/x"], picture),
        "current folder": samples(["./x", "./a/y"], picture),
        "parent folder": samples(["../x", "/x"], picture),
        "capitals": [("a.JPG", one), ("a.JSON", JSON), ("A.JPEG", picture(1)), ("b.Png", picture(2)), ("b.CLS", b"5")],
        "spaces": samples([" a b", "c d/e f ", "tab\tx"], picture),
        "unicode": samples(["caf\u00e9", "\u732b/\u72ac", "e\u0301", "\U0001f600"], picture),
        "long": samples(["n" * 90, "d" * 80 + "/" + "n" * 90, "p" * 150 + "/" + "n" * 120], picture),
        "image last": [("0.json", JSON), ("0.txt", b"x"), ("0.jpg", one), ("1.cls", b"2"), ("1.png", picture(1))],
        "other members": [("README", b"x"), ("0.jpg", one), ("0.json", JSON), ("0.npy", b"x"), ("0.a.npy", b"x")],
        "tif": [("0.tif", one), ("1.jfif", picture(1)), ("2.tiff", picture(2))],
        "two tars joined": samples(["0", "1"], picture) + samples(["0", "1"], picture),
        "joined, sidecars first": [m for m in samples(["0", "1"], picture) + samples(["0"], picture)][::-1],
        "image alone again": [("0.jpg", one), ("1.jpg", picture(1)), ("0.jpg", picture(2)), ("1.jpg", picture(3))],
        "again after a text": [("0.jpg", one), ("1.txt", b"x"), ("0.jpg", picture(2))],
    }


def by_webdataset(path: Path, members: Members) -> None:
    """Write members, grouped as they follow each other, with webdataset's writer."""
    with webdataset.TarWriter(str(path)) as tar:
        for name, data in members:
            key, extension = base_plus_ext(name)
            tar.write({"__key__": key or name, **({extension: data} if extension else {})})


def by_tarfile(form: int) -> Callable[[Path, Members], None]:
    def write(path: Path, members: Members) -> None:
        with tarfile.open(path, "w", format=form) as tar:
            folders = {str(Path(name).parent) for name, _ in members} - {".", "/", ".."}
            for folder in sorted(folders):
                info = tarfile.TarInfo(folder)
                info.type = tarfile.DIRTYPE
                tar.addfile(info)
            for name, data in members:
                info = tarfile.TarInfo(name)
                info.size = len(data)
                info.mtime = 1.5 if form == tarfile.PAX_FORMAT else 1  # a fraction needs a pax header
                tar.addfile(info, io.BytesIO(data))

    return write


WRITERS = {
    "webdataset": by_webdataset,
    "ustar": by_tarfile(tarfile.USTAR_FORMAT),
    "gnu": by_tarfile(tarfile.GNU_FORMAT),
    "pax": by_tarfile(tarfile.PAX_FORMAT),
}


@pytest.mark.parametrize("writer", WRITERS)
def test_the_samples_of_webdataset(tmp_path, picture, writer):
    for layout, members in layouts(picture).items():
        path = tmp_path / f"{layout}.tar"
        if (writer, layout) == ("ustar", "long"):
            with pytest.raises(ValueError, match="name is too long"):
                WRITERS[writer](path, members)
            continue
        WRITERS[writer](path, members)
        assert assert_same(path) > 0, layout


@pytest.mark.parametrize("form", ["v7", "ustar", "gnu", "oldgnu", "posix"])
@pytest.mark.parametrize("what", ["*", "./*", "."])
def test_the_samples_of_gnu_tar(tmp_path, picture, form, what):
    folder = tmp_path / "files"
    for name, data in samples(["a", "img.001", "sub dir/caf\u00e9", ".dots/x", "a.b/c"], picture):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    (folder / "img.001.json").unlink()  # img.001.json and img.001.cls are no sidecars of img for either
    (folder / "img.001.cls").unlink()
    path = tmp_path / "a.tar"
    command = f'tar --format={form} --sort=name -cf "$0" {what}'
    subprocess.run(["bash", "-c", command, str(path)], cwd=folder, check=True)
    assert assert_same(path) == (5 if what == "." else 4)


def test_a_shard_writer(tmp_path, picture):
    with webdataset.ShardWriter(str(tmp_path / "%03d.tar"), maxcount=2, verbose=0) as shards:
        for i in range(5):
            side = {"label": i, "caption": "a cup"}
            shards.write({"__key__": f"a/{i}", "left.jpg": picture(i), "json": side, "txt": "a cup", "__url__": "x"})
    assert [assert_same(path) for path in sorted(tmp_path.glob("*.tar"))] == [2, 2, 1]


def test_which_image_of_several(tmp_path, write_tar, picture):
    rgb, depth, jpg = picture(0), picture(1), picture(2)
    path = write_tar(
        tmp_path / "a.tar",
        [
            ("0.rgb.jpg", rgb), ("0.depth.png", depth), ("0.json", JSON),
            ("1.depth.png", depth), ("1.json", JSON), ("1.RGB.JPG", rgb),
            ("2.jpg", jpg), ("2.depth.png", depth),
        ],
    )  # fmt: skip
    scan = scan_tar(str(path))
    assert scan.rows["key"].to_pylist() == ["2"]
    assert [(f.key, f.reason) for f in scan.faults] == [("0", "several_images"), ("1", "several_images")]
    assert all("depth.png, rgb.jpg" in f.detail and "image_extension" in f.detail for f in scan.faults)

    theirs = {s["__key__"]: s for s in read_by_webdataset(path)}
    for chosen in ("rgb.jpg", ".RGB.jpg", "depth.png", "jpg"):
        extension = image_extension(TarSource("", image_extension=chosen))
        scan = scan_tar(str(path), extension)
        rows = scan.rows.to_pylist()
        found = {r["key"]: read_range(str(path), r["offset"], r["length"]) for r in rows}
        assert found == {key: s[extension] for key, s in theirs.items() if extension in s}
        assert {(f.key, f.reason) for f in scan.faults} == {(key, "no_image") for key in set(theirs) - set(found)}
        assert all(extension in f.detail for f in scan.faults)
        assert all((r["given_label"] == 3) == (r["key"] != "2") for r in rows)


def test_all_images_of_one_key(tmp_path, write_tar, picture):
    """webdataset reads one sample from them, so the user must rename them; they are not dropped in silence."""
    path = write_tar(tmp_path / "a.tar", [(f"img.{i:03d}.jpg", picture(i)) for i in range(8)])
    assert len(read_by_webdataset(path)) == 1
    (fault,) = scan_tar(str(path)).faults
    assert (fault.key, fault.reason) == ("img", "several_images") and "004.jpg and 3 more" in fault.detail


def test_sidecars_apart_from_their_images(tmp_path, write_tar, picture):
    """webdataset's samples with an image are the same; here they have their sidecars too."""
    members = [(f"{i}.jpg", picture(i)) for i in range(3)] + [(f"{i}.json", JSON) for i in range(3)]
    members += [(f"{i}.depth.png", picture(5)) for i in range(3)]
    path = write_tar(tmp_path / "a.tar", members)
    theirs = [(s["__key__"], s["jpg"]) for s in read_by_webdataset(path) if "jpg" in s]
    ours, rows = read_by_us(path)
    assert ours == theirs and [row["given_label"] for row in rows] == [3, 3, 3]


def test_a_member_twice_in_a_sample(tmp_path, write_tar, picture):
    members = [("0.jpg", picture(0)), ("0.json", JSON)]
    for again in ("0.jpg", "0.json", "0.JPG"):
        path = write_tar(tmp_path / f"{again}.tar", [*members, (again, picture(1))])
        with pytest.raises(ValueError, match="duplicate file name"):
            read_by_webdataset(path)
        scan = scan_tar(str(path))
        (row,) = scan.rows.to_pylist()
        assert read_range(str(path), row["offset"], row["length"]) == picture(0) and row["given_label"] == 3
        assert [(f.key, f.reason) for f in scan.faults] == [("0", "duplicate_key")]


def test_members_that_are_no_samples(tmp_path, write_tar, picture):
    path = write_tar(
        tmp_path / "a.tar",
        [
            ("__url__", b"x"), ("__meta__/x.jpg", picture(1)), ("__MACOSX/._0.jpg", b"x"), ("._0.jpg", b"x"),
            ("0.jpg", picture(0)), ("._0.json", b"x"), ("0.json", JSON), ("__x__.jpg", picture(2)),
            ("d.e/._0.jpg", b"x"),
        ],
    )  # fmt: skip
    theirs = [(s["__key__"], s["jpg"]) for s in read_by_webdataset(path) if "jpg" in s]
    scan = scan_tar(str(path))
    rows = scan.rows.to_pylist()
    assert [(r["key"], read_range(str(path), r["offset"], r["length"])) for r in rows] == theirs
    assert [r["given_label"] for r in rows] == [3, -1]
    hidden = ["__meta__/x.jpg", "__MACOSX/._0.jpg", "._0.jpg", "._0.json", "d.e/._0.jpg"]
    assert [(f.key, f.reason) for f in scan.faults] == [(name, "hidden_member") for name in hidden]


def test_a_kind_of_image_that_cannot_be_decoded(tmp_path, write_tar):
    path = write_tar(tmp_path / "a.tar", [("0.ppm", b"P6 1 1 255\nabc"), ("1.avif", b"x"), ("2.rgb.ppm", b"")])
    assert len(read_by_webdataset(path)) == 3
    reasons = [("0", "not_an_image"), ("1", "not_an_image"), ("2", "empty_member")]
    assert [(f.key, f.reason) for f in scan_tar(str(path)).faults] == reasons


def test_names_that_differ_in_bytes_that_are_not_utf8(tmp_path, picture):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT, encoding="latin-1") as tar:
        for name, data in (("\xe9.jpg", picture(0)), ("\xe9.json", JSON), ("\xe8.jpg", picture(1))):
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    theirs = [image_of(sample) for sample in read_by_webdataset(path)]
    ours, rows = read_by_us(path)
    assert [data for _, data in ours] == theirs and [r["given_label"] for r in rows] == [3, -1]


# webdataset's expression takes a line break in a folder's name for the end of the name; such names are read here.
PARTS = st.lists(st.sampled_from(["a", "B", ".", "/", "_", " ", "jpg", "\u00c9", "\u0130"]), max_size=12).map("".join)


@given(st.text(st.characters(exclude_characters="\n\0")) | PARTS)
@example("a/.x.jpg")
@example("a.b/.x.jpg")
@example("a.b/c")
@example(".x.jpg")
@example("x.")
def test_names_are_split_as_by_webdataset(name):
    key, extension = split_name(name)
    their_key, their_extension = base_plus_ext(name)
    if their_key is None:
        assert not extension or not key or key[-1] == "/"
    else:
        assert (key, extension) == (their_key, their_extension.lower())


NAMES = st.tuples(st.sampled_from(["0", "1", "d/0"]), st.sampled_from(["jpg", "rgb.jpg", "json", "txt"]))


@given(st.lists(NAMES, max_size=9))
@settings(max_examples=60, deadline=None)
def test_members_in_any_order(tmp_path_factory, picture, names):
    """Each image that webdataset reads alone in its sample is a row with its key, or its key has a fault."""
    path = tmp_path_factory.mktemp("shards") / "a.tar"
    members = [(f"{k}.{e}", JSON if e == "json" else picture(i)) for i, (k, e) in enumerate(names)]
    by_tarfile(tarfile.GNU_FORMAT)(path, members)
    handler = webdataset.ignore_and_continue
    theirs = list(webdataset.WebDataset(str(path), shardshuffle=False, handler=handler, empty_check=False))
    scan = scan_tar(str(path))
    ours = [(r["key"], read_range(str(path), r["offset"], r["length"])) for r in scan.rows.to_pylist()]
    faults = {f.key for f in scan.faults}
    for sample in theirs:
        for extension in {"jpg", "rgb.jpg"} & set(sample):
            key = sample["__key__"]
            plain = any(k == key and data != sample[extension] for k, data in ours)  # an image with a plain name
            assert (key, sample[extension]) in ours or key in faults or extension == "rgb.jpg" and plain
