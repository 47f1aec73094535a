"""One look through a shard: rows, and a fault for everything that cannot be used."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile

import pytest

from radioplat.data.scan.shard import scan_image, scan_tar
from radioplat.data.storage.files import read_range


def faults(scan):
    return {(f.key, f.reason) for f in scan.faults}


def test_rows_point_at_the_bytes(tmp_path, write_tar, photo):
    images = {f"{i:03d}": photo(40 + i, 30, name="coffee.png") for i in range(5)}
    path = write_tar(tmp_path / "a.tar", [(f"{k}.jpg", v) for k, v in images.items()])
    scan = scan_tar(str(path))
    assert not scan.faults
    for i, row in enumerate(scan.rows.to_pylist()):
        assert read_range(str(path), row["offset"], row["length"]) == images[row["key"]]
        assert (row["width"], row["height"], row["format"]) == (40 + i, 30, "JPEG")
    assert scan.rows["offset"].to_pylist() == sorted(scan.rows["offset"].to_pylist())


def test_sidecars(tmp_path, write_tar, photo):
    caption = json.dumps({"caption": "a cup", "md5": "m", "label": "cat"}).encode()
    path = write_tar(
        tmp_path / "a.tar",
        [
            ("x/1.json", json.dumps({"uid": "u", "sha256": "s", "id": 7}).encode()),  # before its image
            ("x/1.JPG", photo()),
            ("x/2.png", photo(format="PNG")),
            ("x/2.json", caption),
            ("y/1.webp", photo(format="WEBP")),
            ("y/1.cls", b"3\n"),
            ("y/2.jpeg", photo()),
            ("y/2.cls", b"dog"),
            ("y/3.cls", b"9"),
            ("y/3.img", photo()),
            ("y/3.json", b'{"label": 4}'),
            ("y/4.jpg", photo()),
            ("y/4.json", b"{not json"),
            ("y/5.jpg", photo()),
            *((f"z/{i}.jpg", photo()) for i in range(4)),
            ("z/0.json", b'{"label": 1.5, "md5": "m"}'),
            ("z/1.json", b'{"id": [3]}'),
            ("z/2.json", b'{"label": true}'),
            ("z/3.json", b'{"label": -1}'),
        ],
    )
    scan = scan_tar(str(path))
    rows = {r["key"]: r for r in scan.rows.to_pylist()}
    assert list(rows) == ["x/1", "x/2", "y/1", "y/2", "y/3", "y/4", "y/5", *(f"z/{i}" for i in range(4))]
    assert rows["x/1"]["hash"] == "s" and rows["x/1"]["given_label"] == 7
    assert rows["x/2"]["hash"] == "m" and rows["x/2"]["label_name"] == "cat" and rows["x/2"]["given_label"] == -1
    assert read_range(str(path), rows["x/2"]["caption_offset"], rows["x/2"]["caption_length"]) == caption
    assert rows["y/1"]["given_label"] == 3 and rows["y/2"]["label_name"] == "dog"
    assert rows["y/3"]["given_label"] == 4  # JSON wins over .cls
    assert rows["y/5"]["hash"] is None and rows["y/5"]["label_name"] is None and rows["y/5"]["caption_offset"] == -1
    assert all(rows[f"z/{i}"]["given_label"] == -1 and rows[f"z/{i}"]["label_name"] is None for i in range(4))
    assert rows["z/0"]["hash"] == "m", "the rest of a sidecar whose label is none"
    assert faults(scan) == {(key, "bad_sidecar") for key in ("y/4", "z/0", "z/1", "z/2")}


def test_bad_members(tmp_path, write_tar, photo, bomb_png):
    path = write_tar(
        tmp_path / "a.tar",
        [
            ("text.jpg", b"this is a text file"),
            ("zero.jpg", b""),
            ("twice.jpg", photo(40, 30)),
            ("twice.png", photo(20, 10, "PNG")),
            ("twice.jpg", photo(50, 30)),
            ("bomb.png", bomb_png),
            ("../escape.jpg", photo(33, 30)),
            ("alone.json", b"{}"),
            ("alone.txt", b"caption"),
            ("photo.v2.jpg", photo()),
            ("._hidden.jpg", b"resource fork"),
            ("README", b"nothing to see"),
        ],
    )
    scan = scan_tar(str(path))
    rows = {r["key"]: (r["width"], r["height"]) for r in scan.rows.to_pylist()}
    assert rows == {"twice": (40, 30), "bomb": (30_000, 30_000), "../escape": (33, 30), "photo": (64, 48)}
    assert faults(scan) == {
        ("text", "not_an_image"), ("zero", "empty_member"), ("twice", "duplicate_key"), ("alone", "no_image"),
        ("._hidden.jpg", "hidden_member"),
    }  # fmt: skip
    assert all(f.shard == str(path) for f in scan.faults)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["a.tar"] and not (tmp_path.parent / "escape.jpg").exists()


def test_a_member_with_far_more_bytes_than_its_pixels_need(tmp_path, photo):
    """It would be read whole: 50 GB behind the header of a tiny image."""
    data, sizes = photo(8, 8, "PNG"), {"large": 50 * 10**9, "padded": 10**6, "plain": 0}
    path = tmp_path / "a.tar"
    with path.open("wb") as file:
        for name, extra in sizes.items():
            info = tarfile.TarInfo(f"{name}.png")
            info.size = len(data) + extra
            file.write(info.tobuf())
            file.write(data)
            file.truncate(file.seek(extra + (-info.size % 512), os.SEEK_CUR))
        file.write(bytes(1024))
    scan = scan_tar(str(path))
    assert scan.rows["key"].to_pylist() == ["padded", "plain"] and faults(scan) == {("large", "too_many_bytes")}
    alone = tmp_path / "alone.png"
    with alone.open("wb") as file:
        file.write(data)
        file.truncate(10**9)
    (fault,) = scan_image(str(alone), "alone.png").faults
    assert (fault.reason, fault.detail) == ("too_many_bytes", "1000000000 bytes for 8x8 pixels")


def test_links_are_not_followed(tmp_path, photo):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w") as tar:
        link = tarfile.TarInfo("link.jpg")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
        data = photo()
        info = tarfile.TarInfo("ok.jpg")
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
    scan = scan_tar(str(path))
    assert scan.rows["key"].to_pylist() == ["ok"] and faults(scan) == {("link.jpg", "not_a_file")}


def test_names_that_are_not_utf8(tmp_path, photo):
    path = tmp_path / "a.tar"
    with tarfile.open(path, "w", format=tarfile.GNU_FORMAT, encoding="latin-1") as tar:
        data = photo()
        info = tarfile.TarInfo("caf\xe9.jpg")
        info.size = len(data)
        tar.addfile(info, io.BytesIO(data))
    assert scan_tar(str(path)).rows["key"].to_pylist()[0].startswith("caf")


def test_a_tar_cut_anywhere_gives_the_members_that_are_whole(tmp_path, write_tar, photo):
    whole = write_tar(tmp_path / "a.tar", [(f"{i}.jpg", photo(40, 30)) for i in range(6)])
    data = whole.read_bytes()
    ends = [r["offset"] + r["length"] for r in scan_tar(str(whole)).rows.to_pylist()]
    last_block = -(-ends[-1] // 512) * 512
    cut = tmp_path / "cut.tar"
    for size in [*range(512, last_block + 1, 700), last_block]:
        cut.write_bytes(data[:size])
        scan = scan_tar(str(cut))
        assert len(scan.rows) == sum(end <= size for end in ends), size
        assert [f.reason for f in scan.faults] == ["truncated_tar"], size


@pytest.mark.parametrize(
    "data, expected",
    [(b"", "empty_tar"), (b"\0" * 10240, "empty_tar"), (b"x" * 2000, "not_a_tar"), (b"x" * 100, "truncated_tar")],
)
def test_files_that_are_no_tar(tmp_path, data, expected):
    path = tmp_path / "a.tar"
    path.write_bytes(data)
    scan = scan_tar(str(path))
    assert len(scan.rows) == 0 and [f.reason for f in scan.faults] == [expected]


def test_damage_in_the_middle_is_told(tmp_path, write_tar, photo):
    path = write_tar(tmp_path / "a.tar", [(f"{i}.jpg", photo(40, 30)) for i in range(4)])
    data = bytearray(path.read_bytes())
    third = scan_tar(str(path)).rows["offset"].to_pylist()[2]
    data[third - 512 : third] = b"\xaa" * 512
    path.write_bytes(data)
    scan = scan_tar(str(path))
    assert scan.rows["key"].to_pylist() == ["0", "1", "3"]  # what follows the damage is found again
    (fault,) = scan.faults
    assert (fault.reason, fault.offset) == ("corrupt_tar", third - 512)
    assert fault.offset + fault.length == scan.rows["offset"].to_pylist()[2] - 512


def test_a_missing_file_is_a_fault(tmp_path):
    assert [f.reason for f in scan_tar(str(tmp_path / "gone.tar")).faults] == ["unreadable_shard"]


def test_the_shard_is_not_written(tmp_path, write_tar, photo):
    path = write_tar(tmp_path / "a.tar", [("1.jpg", photo())])
    before = hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns
    scan_tar(str(path))
    assert before == (hashlib.sha256(path.read_bytes()).hexdigest(), path.stat().st_mtime_ns)
