"""Formats other than JPEG are decoded in a process apart: a file that hangs, ends or fills it is a bad image."""

from __future__ import annotations

import contextlib
import os
import signal
import struct
import subprocess
import sys
import threading
import time
import zlib
from collections.abc import Callable, Iterator

import numpy as np
import psutil
import pytest

from radioplat.data.images import decoder_pool
from radioplat.data.images.decode import BadSample, decode_rgb
from radioplat.errors import DecoderError

SLOW_PIXELS = 30_000 * 600


@pytest.fixture(autouse=True)
def no_process_before_or_after():
    decoder_pool._pool.end_all()
    yield
    decoder_pool._pool.end_all()


def png_chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))


@pytest.fixture
def profiles_png(photo) -> bytes:
    """A PNG of 48 pixels and 4 MB: 4,000 colour profiles, each of which inflates to a million bytes."""
    data = photo(8, 6, "PNG")
    profile = png_chunk(b"iCCP", b"x\0\0" + zlib.compress(bytes(1_000_000), 9))
    return data[:33] + profile * 4000 + data[33:]


@pytest.fixture(scope="module")
def slow_bmp() -> bytes:
    """A BMP of 3 KB that takes seconds: one pixel of each row is encoded, and Pillow adds the others in a loop."""
    width, height = 30_000, SLOW_PIXELS // 30_000
    rows = b"\x01\x05\x00\x00" * height + b"\x00\x01"
    start = 14 + 40 + 1024
    head = b"BM" + struct.pack("<IHHI", start + len(rows), 0, 0, start)
    info = struct.pack("<IiiHHIIiiII", 40, width, height, 1, 8, 1, len(rows), 0, 0, 256, 0)
    return head + info + bytes(i // 4 for i in range(1024)) + rows


def vast_tile_tiff() -> bytes:
    """A TIFF of 8 x 8 pixels whose only tile has 20,000 x 20,000."""
    tile = zlib.compress(bytes(100_000))
    entries = [(256, 8), (257, 8), (258, 8), (259, 8), (262, 1), (277, 1), (322, 20_000), (323, 20_000)]
    entries += [(324, 8), (325, len(tile))]
    at = 8 + len(tile) + len(tile) % 2
    table = b"".join(struct.pack("<HHII", tag, 4, 1, value) for tag, value in entries)
    return (
        b"II*\0"
        + struct.pack("<I", at)
        + tile.ljust(at - 8, b"\0")
        + struct.pack("<H", len(entries))
        + table
        + bytes(4)
    )


def bad(data: bytes, **given) -> BadSample:
    with pytest.raises(BadSample) as caught:
        decode_rgb(data, **given)
    return caught.value


def children() -> list[psutil.Process]:
    """The processes in which this one decodes."""
    found = []
    for process in psutil.Process().children():
        with contextlib.suppress(psutil.NoSuchProcess):  # it has just ended
            if "radioplat.data.images.decoder_process" in process.cmdline():
                found.append(process)
    return found


STARTED_S = 0.7  # of CPU time: more than a process takes to start


@contextlib.contextmanager
def while_decoding(action: Callable[[psutil.Process], None], times: int = 1) -> Iterator[None]:
    """Do ``action`` to so many processes, one after the other, once each has used CPU time for decoding."""
    done: set[int] = set()
    over = threading.Event()

    def act() -> None:
        while len(done) < times and not over.wait(0.01):
            for process in children():
                with contextlib.suppress(psutil.NoSuchProcess):
                    if process.pid not in done and process.cpu_times().user > STARTED_S:
                        action(process)
                        done.add(process.pid)

    thread = threading.Thread(target=act)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()
    assert len(done) == times


def test_an_image_that_takes_too_long_is_bad_and_the_reader_goes_on(photo, profiles_png, monkeypatch):
    monkeypatch.setattr(decoder_pool, "CPU_S", 1.0)
    fine = photo(8, 6, "PNG")
    before = decode_rgb(fine).rgb
    (first,) = children()
    found = bad(profiles_png)
    assert found.reason == "too_slow" and "1 s of CPU time" in found.detail
    assert not first.is_running()
    assert np.array_equal(decode_rgb(fine).rgb, before)
    (second,) = children()
    assert second.pid != first.pid


@pytest.mark.proof
def test_a_slow_image_within_the_limit_is_good_however_busy_the_machine_is(slow_bmp, monkeypatch):
    """Its process stands still for longer than the limit: time of the clock does not count."""
    monkeypatch.setattr(decoder_pool, "CPU_S", 1.0)
    monkeypatch.setattr(decoder_pool, "_LOOK_S", 0.1)
    stood = []

    def pause(process: psutil.Process) -> None:
        process.suspend()
        time.sleep(3)
        process.resume()
        stood.append(process.pid)

    with while_decoding(pause):
        rgb = decode_rgb(slow_bmp).rgb
    assert stood == [process.pid for process in children()] and rgb.shape == (600, 30_000, 3)


def test_an_image_that_needs_too_much_memory_is_bad(photo):
    data = vast_tile_tiff()
    decode_rgb(photo(8, 6, "PNG"))
    (process,) = children()
    before = process.memory_info().rss
    found = bad(data, max_pixels=1_000_000)
    assert found.reason == "corrupt_image"
    with open(f"/proc/{process.pid}/status") as file:
        peak = next(int(line.split()[1]) * 1024 for line in file if line.startswith("VmHWM"))
    assert peak - before < 8 * 1_000_000 + 64 * 2**20
    assert "memory" in found.detail
    assert decode_rgb(photo(8, 6, "PNG")).width == 8


def test_more_encoded_bytes_than_memory_are_refused_unsent(photo):
    data = photo(8, 6, "PNG") + bytes(66 * 2**20)
    assert bad(data, max_pixels=100).detail == decoder_pool.OVER_MEMORY[1]
    assert not children()


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_a_process_killed_from_outside_costs_no_image(slow_bmp, number):
    with while_decoding(lambda process: process.send_signal(number)):
        rgb = decode_rgb(slow_bmp).rgb
    assert rgb.shape == (600, 30_000, 3) and (rgb[:, 0] == 5).all() and rgb[:, 1:].max() == 0


def test_idle_processes_that_were_killed_are_replaced(photo):
    """As many as an image may end: it is not at fault."""
    for process in [decoder_pool.DecoderProcess() for _ in range(3)]:
        decoder_pool._pool.give_back(process)
    killed = children()
    assert len(killed) == 3
    for process in killed:
        process.kill()
        process.wait()
    assert decode_rgb(photo(8, 6, "PNG")).width == 8
    assert len(children()) == 1


def test_an_image_that_ends_two_processes_is_bad(slow_bmp, photo):
    with while_decoding(lambda process: process.send_signal(signal.SIGSEGV), 2):
        found = bad(slow_bmp)
    assert found.reason == "corrupt_image" and found.detail.count("SIGSEGV") == 2
    assert decode_rgb(photo(8, 6, "PNG")).width == 8


@pytest.mark.parametrize("times", [1, 2])
def test_a_process_that_is_stopped_for_good_is_no_images_fault(slow_bmp, monkeypatch, times):
    monkeypatch.setattr(decoder_pool, "_LOOK_S", 0.1)
    monkeypatch.setattr(decoder_pool, "STILL_S", 1.0)
    with while_decoding(lambda process: process.suspend(), times):
        if times == 1:
            assert decode_rgb(slow_bmp).width == 30_000
        else:
            with pytest.raises(DecoderError, match="used no CPU"):
                decode_rgb(slow_bmp)


@pytest.mark.parametrize(("program", "said"), [("/nowhere/python", "No such file"), ("/bin/false", "exit status 1")])
def test_a_process_that_cannot_be_started_is_no_images_fault(photo, monkeypatch, program, said):
    monkeypatch.setattr(sys, "executable", program)
    with pytest.raises(DecoderError, match=said):
        decode_rgb(photo(8, 6, "PNG"))


def test_threads_decode_at_once_in_a_process_each(photo):
    """Different images at once do not mix; as many processes as threads at most."""
    images = [photo(100 + i, 80, format) for i in range(12) for format in ("PNG", "BMP", "WEBP")]
    expected = [decode_rgb(data).rgb for data in images]
    found: dict[int, list[bool]] = {}

    def work(thread: int) -> None:
        order = np.random.default_rng(thread).permutation(len(images))
        found[thread] = [np.array_equal(decode_rgb(images[i]).rgb, expected[i]) for i in order]

    threads = [threading.Thread(target=work, args=(i,)) for i in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert all(map(all, found.values())) and len(found) == 3
    assert 1 <= len(children()) <= 3


def run(code: str, *arguments: str) -> subprocess.Popen[str]:
    return subprocess.Popen([sys.executable, "-c", code, *arguments], stdout=subprocess.PIPE, text=True)


def test_jpegs_alone_start_no_process(photo, tmp_path):
    images = {"a": photo(64, 48), "b": photo(64, 48, mode="CMYK"), "c": photo(64, 48)[:700], "d": photo(8, 8, "PNG")}
    for name, data in images.items():
        (tmp_path / name).write_bytes(data)
    code = """
import sys, psutil
from pathlib import Path
from radioplat.data.images.decode import BadSample, decode_rgb
for name in "abcd":
    try:
        decode_rgb(Path(sys.argv[1], name).read_bytes())
    except BadSample as bad:
        print(bad.reason, end=" ")
    print(len(psutil.Process().children()), end=" ")
"""
    assert run(code, str(tmp_path)).communicate()[0].split() == ["0", "0", "corrupt_image", "0", "1"]


def test_the_process_ends_with_the_one_that_started_it(slow_bmp, tmp_path):
    """Killed in the middle of an image, and between two images."""
    (tmp_path / "slow").write_bytes(slow_bmp)
    code = """
import sys, threading, time, psutil
from pathlib import Path
from radioplat.data.images.decode import decode_rgb
thread = threading.Thread(target=decode_rgb, args=(Path(sys.argv[1]).read_bytes(),))
thread.start()
if sys.argv[2] == "between":
    thread.join()
for _ in range(3000):
    if psutil.Process().children():
        break
    time.sleep(0.01)
print(psutil.Process().children()[0].pid, flush=True)
time.sleep(600)
"""
    for moment in ("in the middle", "between"):
        parent = run(code, str(tmp_path / "slow"), moment)
        assert parent.stdout is not None
        child = psutil.Process(int(parent.stdout.readline()))
        parent.kill()
        parent.wait()
        child.wait(60)
        assert not child.is_running()


def test_a_fork_gets_processes_of_its_own(photo, tmp_path):
    """Two processes that write to the same pipes would get each other's images."""
    for name, width in (("a", 90), ("b", 110)):
        (tmp_path / name).write_bytes(photo(width, 80, "PNG"))
    code = """
import os, sys
from pathlib import Path
from radioplat.data.images.decode import decode_rgb
a, b = (Path(sys.argv[1], name).read_bytes() for name in "ab")
decode_rgb(a)
pid = os.fork()
right = all(decode_rgb(b if pid else a).width == (110 if pid else 90) for _ in range(300))
if not pid:
    os._exit(not right)
print(right, os.waitpid(pid, 0)[1])
"""
    assert run(code, str(tmp_path)).communicate(timeout=120)[0].split() == ["True", "0"]


def test_a_process_is_kept_for_the_next_image(photo):
    """Also after an image of many megabytes, whose memory it has returned."""
    pids = set()
    for width, height, format in ((64, 48, "PNG"), (4000, 3000, "BMP"), (2000, 1500, "WEBP"), (64, 48, "GIF")):
        decode_rgb(photo(width, height, format))
        pids |= {process.pid for process in children()}
    assert len(pids) == 1 and os.getpid() not in pids
