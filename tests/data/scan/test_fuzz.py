"""Damage at random: every member is a row or has a fault, nothing raises, and `tarfile` is agreed with."""

from __future__ import annotations

import io
import json
import tarfile

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radioplat.data.images.headers import image_header, open_lazily
from radioplat.data.scan.shard import scan_tar
from radioplat.data.scan.tar import Damage, walk_tar
from radioplat.data.storage.read_ahead import Window

FORMATS = {"jpg": "JPEG", "png": "PNG", "gif": "GIF", "webp": "WEBP", "bmp": "BMP", "tiff": "TIFF"}


@pytest.fixture(scope="module")
def images(photo) -> dict[str, bytes]:
    return {ext: photo(40, 30, kind) for ext, kind in FORMATS.items()}


class Made(list):
    """A list that hypothesis does not print."""

    def __repr__(self) -> str:
        return "Made"


@pytest.fixture(scope="module")
def shards(images) -> list[tuple[bytes, list[tarfile.TarInfo]]]:
    """The same members in the tar dialects that are about, and where each member lies."""
    made = Made()
    for dialect in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=dialect) as tar:
            for i, (ext, data) in enumerate(images.items()):
                folder = "a rather long folder name, again and again/" * (3 if i == 3 and dialect else 1)
                for name, content in ((f"{i}.{ext}", data), (f"{i}.json", json.dumps({"label": i}).encode())):
                    info = tarfile.TarInfo(folder + name)
                    info.size, info.mtime = len(content), 1.5  # a fraction of a second makes a pax header
                    tar.addfile(info, io.BytesIO(content))
        data = buffer.getvalue()
        made.append((data, tarfile.open(fileobj=io.BytesIO(data)).getmembers()))
    return made


def walked(path) -> tuple[list, list]:
    found = list(walk_tar(Window(str(path))))
    return [f for f in found if not isinstance(f, Damage)], [f for f in found if isinstance(f, Damage)]


@pytest.mark.parametrize("dialect", range(3))
def test_whole_tars_are_read_as_tarfile_reads_them(tmp_path, shards, dialect):
    data, expected = shards[dialect]
    (tmp_path / "a.tar").write_bytes(data)
    members, damage = walked(tmp_path / "a.tar")
    assert [(m.name, m.offset, m.size) for m in members] == [(m.name, m.offset_data, m.size) for m in expected]
    assert not damage and len(scan_tar(str(tmp_path / "a.tar")).rows) == len(FORMATS)


def test_links_folders_and_large_sizes(tmp_path):
    infos = []
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.GNU_FORMAT) as tar:
        for name, kind, link in (
            ("folder", tarfile.DIRTYPE, ""), ("l.jpg", tarfile.SYMTYPE, "x" * 150), ("h.jpg", tarfile.LNKTYPE, "l.jpg"),
            ("n" * 120 + ".jpg", tarfile.REGTYPE, ""), ("fifo.jpg", tarfile.FIFOTYPE, ""),
        ):  # fmt: skip
            info = tarfile.TarInfo(name)
            info.type, info.linkname = kind, link
            tar.addfile(info)
            infos.append(info)
        info = tarfile.TarInfo("large.jpg")
        info.size = 2**34  # base 256, and behind the end of this file
        tar.addfile(info)
    members, damage = walked(tmp_path / "a.tar")
    assert [m.kind for m in members] == ["folder", "other", "other", "file", "other"]
    assert [m.name.rstrip("/") for m in members] == [i.name for i in infos]
    assert [(d.reason, d.name) for d in damage] == [("truncated_tar", "large.jpg")]


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("fuzz") / "a.tar"


edits = st.lists(
    st.tuples(
        st.sampled_from(["header", "body", "zero", "anywhere"]), st.floats(0, 0.999), st.binary(min_size=1, max_size=9)
    ),
    min_size=1,
    max_size=6,
)  # fmt: skip


@given(st.integers(0, 2), edits, st.none() | st.floats(0, 1))
@settings(max_examples=250, deadline=None)
def test_every_member_of_a_damaged_tar_is_a_row_or_has_a_fault(shards, scratch, dialect, edits, cut):
    whole, members = shards[dialect]
    data = bytearray(whole)
    for kind, where, noise in edits:
        member = members[int(where * len(members))]
        at = {
            "header": member.offset_data - 512 + int(where * 1e6) % 500,
            "body": member.offset_data + int(where * 1e6) % member.size,
            "zero": member.offset_data - 512,
            "anywhere": int(where * len(data)),
        }[kind]
        noise = bytes(512) if kind == "zero" else noise
        data[at : at + len(noise)] = noise[: max(0, len(data) - at)]
    data = bytes(data if cut is None else data[: int(cut * len(data))])
    scratch.write_bytes(data)
    scan = scan_tar(str(scratch))
    rows = set(scan.rows["offset"].to_pylist())
    # A loss that reaches the end of the file takes with it whatever followed there once.
    ends = [f.offset + f.length for f in scan.faults]
    lost = [(f.offset, end if end < len(data) else float("inf")) for f, end in zip(scan.faults, ends, strict=True)]
    whole_shard = any(f.reason in ("empty_tar", "not_a_tar") for f in scan.faults)
    for member in members:
        start, stop = member.offset, member.offset_data  # of its headers
        accounted = stop in rows or whole_shard or any(a <= at < b or a == at for a, b in lost for at in (start, stop))
        # Where a checksum holds by chance a member may have got another name, and no image extension.
        renamed = not accounted and data[start:stop] != whole[start:stop] and _is_walked(scratch, stop)
        assert accounted or renamed or member.name.endswith(".json"), (member.name, scan.faults)
    assert all(f.reason for f in scan.faults)


def _is_walked(path, offset: int) -> bool:
    """Whether the walk reports a member whose content lies here, under whatever name."""
    return any(m.offset == offset for m in walked(path)[0])


@given(
    st.sampled_from(sorted(FORMATS)),
    st.lists(st.tuples(st.floats(0, 0.999), st.integers(0, 255)), max_size=8),
    st.floats(0, 1),
)
@settings(max_examples=400, deadline=None)
@pytest.mark.filterwarnings("ignore")
def test_a_damaged_header_gives_a_size_or_none(images, ext, edits, cut):
    data = bytearray(images[ext])
    reach = min(len(data), 400)
    for where, value in edits:
        data[int(where * reach)] = value
    data = bytes(data[: max(1, int(cut * len(data)))] if cut < 0.9 else data)
    header = image_header(data)
    assert header == image_header(io.BytesIO(data))
    if header is not None:
        assert header.width > 0 and header.height > 0 and 1 <= header.orientation <= 8
    # Where Pillow tells a size too, it is the same.
    if header is not None and ext in ("jpg", "png"):
        try:
            image = open_lazily(io.BytesIO(data))
        except Exception:
            return
        if image is not None:
            assert tuple(sorted(image.size)) == tuple(sorted(header[:2]))
