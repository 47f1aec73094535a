"""Tar headers that lie: huge numbers, sparse files, chains of headers. Nothing raises, and time goes with the bytes."""

from __future__ import annotations

import io
import os
import shutil
import subprocess
import tarfile

import pytest
from calls import count_calls
from hypothesis import given, settings
from hypothesis import strategies as st

from radioplat.data.scan.scan import ScanBatch, scan_batch
from radioplat.data.scan.shard import scan_tar
from radioplat.data.scan.tables import Scan
from radioplat.data.scan.tar import Damage, walk_tar
from radioplat.data.storage.read_ahead import Window

BLOCK = 512


def padded(data: bytes) -> bytes:
    return data + bytes(-len(data) % BLOCK)


def header(name: bytes, size: int | bytes, kind: bytes = b"0", fields: dict[int, bytes] | None = None) -> bytes:
    """A header whose checksum holds, whatever it says; ``fields`` are bytes by their place in it."""
    made = bytearray(BLOCK)
    size = b"%011o\0" % size if isinstance(size, int) else size
    for at, value in {0: name[:100], 124: size, 156: kind, 257: b"ustar\00000", **(fields or {})}.items():
        made[at : at + len(value)] = value
    made[148:156] = b" " * 8
    made[148:156] = b"%06o\0 " % sum(made)
    return bytes(made)


def records(**values: bytes) -> bytes:
    """Pax records; ``__`` in a name stands for a dot."""
    found = b""
    for name, value in values.items():
        rest = b" " + name.replace("__", ".").encode() + b"=" + value + b"\n"
        length = len(rest) + 1
        while len(str(length)) + len(rest) != length:
            length += 1
        found += str(length).encode() + rest
    return found


def extended(content: bytes, kind: bytes = b"x") -> bytes:
    return header(b"././@PaxHeader", len(content), kind) + padded(content)


def scanned(path, data: bytes) -> Scan:
    """The scan of ``data``; each fault lies in the file and can be kept in the index."""
    path.write_bytes(data)
    scan = scan_tar(str(path))
    assert all(0 <= f.offset and 0 <= f.length and f.offset + f.length <= len(data) for f in scan.faults if f.key)
    assert all(-1 <= f.offset <= len(data) and f.offset + f.length <= len(data) for f in scan.faults)
    batch = scan_batch(ScanBatch(0, "tar", str(path.parent), (path.name,)))
    assert batch.faults.num_rows == len(scan.faults)
    return scan


HUGE = b"99999999999999999999"
BASE_256 = b"\x80" + (2**70).to_bytes(11)
SPARSE = {"GNU__sparse__major": b"1", "GNU__sparse__minor": b"0", "GNU__sparse__name": b"bad.jpg"}


LYING = {
    "sparse size": ("not_a_file", extended(records(GNU__sparse__size=HUGE)) + header(b"bad.jpg", 0)),
    "sparse name": ("not_a_file", extended(records(**SPARSE, GNU__sparse__realsize=HUGE)) + header(b"x", 0)),
    "sparse map": ("not_a_file", extended(records(GNU__sparse__map=b"0," + HUGE)) + header(b"bad.jpg", 0)),
    "sparse blocks": ("not_a_file", extended(records(GNU__sparse__numblocks=HUGE)) + header(b"bad.jpg", 0)),
    "old sparse size": ("not_a_file", header(b"bad.jpg", 0, b"S", {483: BASE_256})),
    "link": ("not_a_file", header(b"bad.jpg", BASE_256, b"2")),
    "negative size": ("corrupt_tar", extended(records(size=b"-512")) + header(b"bad.jpg", 0)),
    "size of many digits": ("corrupt_tar", extended(records(size=b"9" * 5000)) + header(b"bad.jpg", 0)),
    "no number": ("corrupt_tar", extended(records(size=b"1e9")) + header(b"bad.jpg", 0)),
    "negative base 256": ("corrupt_tar", header(b"bad.jpg", b"\xff" * 12)),
    "long name of 2 MiB": ("corrupt_tar", header(b"././@LongLink", 2**21, b"L") + bytes(BLOCK)),
}


@pytest.mark.parametrize("lie", LYING)
def test_a_header_that_lies_costs_its_own_member_alone(tmp_path, photo, lie):
    (reason, bad), image = LYING[lie], photo(8, 8)
    scan = scanned(tmp_path / "a.tar", bad + header(b"good.jpg", len(image)) + padded(image) + bytes(1024))
    assert reason in {fault.reason for fault in scan.faults}
    assert scan.rows["key"].to_pylist() == ["good"]


@pytest.mark.parametrize(
    "bad",
    [
        extended(records(size=HUGE)) + header(b"bad.jpg", 0),
        header(b"bad.jpg", BASE_256),
        header(b"bad.json", BASE_256),
        header(b"././@LongLink", BASE_256, b"L"),
        extended(records(size=b"70368744177664", GNU__sparse__major=b"1")) + header(b"bad.jpg", 0),
        header(b"bad.jpg", 0, b"S", {482: b"\1"}) + bytes(504) + b"\1" + bytes(7),
    ],
    ids=["pax size", "base 256", "sidecar", "long name", "sparse size", "sparse map without end"],
)
def test_a_size_beyond_the_file_takes_what_is_left_of_it(tmp_path, bad):
    scan = scanned(tmp_path / "a.tar", bad)
    assert [f.reason for f in scan.faults][:1] in (["truncated_tar"], ["corrupt_tar"], ["not_a_tar"])
    assert scan.faults[0].offset + scan.faults[0].length == len(bad)


CHAINS = {
    "long names": header(b"././@LongLink", 3, b"L") + padded(b"ab\0"),
    "empty long names": header(b"././@LongLink", 0, b"L"),
    "link names": header(b"././@LongLink", 3, b"K") + padded(b"ab\0"),
    "pax": extended(records(path=b"a.txt")),
    "empty pax": header(b"p", 0, b"x"),
    "global pax": extended(records(comment=b"x"), b"g"),
    "long name, junk": header(b"././@LongLink", 0, b"L") + b"x" * BLOCK,
    "sparse maps": header(b"s.txt", 0, b"S", {482: b"\1"}) + (bytes(504) + b"\1" + bytes(7)) * 3,
}


@pytest.mark.parametrize("end", [b"", b"y" * 1024, header(b"a.txt", 0) + bytes(1024)], ids=["cut", "junk", "whole"])
@pytest.mark.parametrize("chain", CHAINS)
def test_chains_of_headers_are_scanned_in_linear_time(tmp_path, chain, end):
    """Twice the headers are twice the calls: the rest of the chain is not looked at again for each of them."""
    once, twice = (
        count_calls(scanned, tmp_path / "a.tar", CHAINS[chain] * (size // len(CHAINS[chain])) + end)
        for size in (2**15, 2**16)
    )
    assert twice < 2.2 * once + 500


def test_a_name_behind_many_headers(tmp_path, photo):
    """Of two headers that tell the name the first counts, as with `tarfile`."""
    image = photo(8, 8)
    chain = extended(b"first.jpg\0", b"L") + extended(records(path=b"second.jpg"))
    chain += extended(b"target\0", b"K") + extended(records(comment=b"x"), b"g")
    data = chain + header(b"own.jpg", len(image)) + padded(image) + bytes(1024)
    scan = scanned(tmp_path / "a.tar", data)
    (expected,) = tarfile.open(fileobj=io.BytesIO(data)).getmembers()
    assert scan.rows["key"].to_pylist() == ["first"] and expected.name == "first.jpg"
    assert scan.rows["offset"].to_pylist() == [expected.offset_data]


@pytest.mark.skipif(shutil.which("tar") is None, reason="no tar")
@pytest.mark.parametrize("dialect", ["gnu", "oldgnu", "posix 0.0", "posix 0.1", "posix 1.0"])
def test_behind_a_sparse_file_of_gnu_tar_the_next_member_is_read(tmp_path, photo, dialect):
    with open(tmp_path / "holes.jpg", "wb") as file:
        for place in range(0, 3_000_000, 250_000):  # more pieces than one header has room for
            file.seek(place)
            file.write(b"data")
        file.truncate(3_500_000)
    (tmp_path / "good.jpg").write_bytes(photo(8, 8))
    form, *version = dialect.split()
    options = [f"--format={form}", *(f"--sparse-version={v}" for v in version)]
    command = ["tar", *options, "-S", "-C", tmp_path, "-cf", tmp_path / "a.tar", "holes.jpg", "good.jpg"]
    made = subprocess.run(command, capture_output=True, text=True)
    if made.returncode:
        pytest.skip(f"not GNU tar: {made.stderr.strip()}")
    scan = scan_tar(str(tmp_path / "a.tar"))
    assert scan.rows["key"].to_pylist() == ["good"]
    assert [(f.reason, f.key) for f in scan.faults] == [("not_a_file", "holes.jpg")]


def test_a_shard_that_becomes_shorter_while_it_is_read(tmp_path, write_tar, photo):
    path = write_tar(tmp_path / "a.tar", [(f"{i}.jpg", photo(64, 64)) for i in range(20)])
    window = Window(str(path))
    walk = walk_tar(window)
    first = next(walk)
    os.truncate(path, first.offset + first.size)
    *_, last = walk
    assert isinstance(last, Damage) and last.reason == "truncated_tar"


@pytest.fixture(scope="module")
def scratch(tmp_path_factory):
    return tmp_path_factory.mktemp("headers") / "a.tar"


NUMBERS = st.sampled_from(
    [HUGE, b"9" * 30, b"-1", b"9223372036854775807", b"9223372036854775808", b"4000000000", b"1e9", b"", b"0", b"700"]
)
KEYS = ("size", "GNU.sparse.size", "GNU.sparse.realsize", "GNU.sparse.numblocks", "GNU.sparse.map", "GNU.sparse.major")
EXTENDED = st.dictionaries(st.sampled_from([key.replace(".", "__") for key in KEYS]), NUMBERS, min_size=1)
SIZES = st.sampled_from([0, 1, 511, 513, 8**11 - 1, BASE_256, b"\xff" * 12, b"\x80" + (700).to_bytes(11), b"abc"])
KINDS = st.sampled_from([bytes([kind]) for kind in b"0123567LKSxgXDMV\0"])
MEMBERS = st.lists(
    st.one_of(
        st.builds(lambda values, kind: extended(records(**values), kind), EXTENDED, st.sampled_from([b"x", b"X"])),
        st.builds(header, st.just(b"n.jpg"), SIZES, KINDS),
        st.builds(header, st.just(b"s.jpg"), SIZES, KINDS, st.just({482: b"\1"})),
        st.sampled_from([bytes(BLOCK), b"x" * BLOCK, b"x" * 100, padded(b'{"label": 3}')]),
    ),
    min_size=1,
    max_size=12,
)  # fmt: skip


@given(MEMBERS, st.floats(0.5, 1))
@settings(max_examples=300, deadline=None)
def test_headers_at_random(scratch, members, cut):
    data = b"".join(members)
    data = data[: max(1, int(cut * len(data)))]
    scan = scanned(scratch, data)
    assert len(scan.rows) or scan.faults
