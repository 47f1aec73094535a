"""The process apart in which images are decoded; :mod:`radioplat.data.images.decoder_pool` starts it and describes it.

It reads requests from stdin and writes answers to stdout, until stdin ends.
"""

from __future__ import annotations

import contextlib
import gc
import io
import json
import os
import resource
import time

import numpy as np

from radioplat.data.images import decoder_pool as wire
from radioplat.data.images.decode import BadSample, checked_header, rgb_bands

_KEPT_BYTES = 32 * 2**20  # a process that keeps more than so much after an image ends


def main() -> None:
    """Decode the images that stdin brings."""
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))  # a hostile image shall not fill a disk
    answers = os.dup(1)
    os.dup2(2, 1)  # what a library prints is no answer
    first = _address_space()
    _write(answers, wire.READY)
    request = bytearray(wire.REQUEST.size)
    while _fill(memoryview(request)):
        length, max_pixels, cpu_s = wire.REQUEST.unpack(request)
        _limit(resource.RLIMIT_AS, _address_space() + wire.most_memory(max_pixels))
        refusal = None
        try:
            _answer(answers, length, max_pixels, cpu_s)
        except BadSample as bad:
            refusal = bad.reason, bad.detail
        except MemoryError:
            refusal = wire.OVER_MEMORY
        if refusal is not None:
            _write(answers, wire.REFUSED, json.dumps(refusal).encode())
        if kept := _address_space() - first > _KEPT_BYTES:
            gc.collect()
            kept = _address_space() - first > _KEPT_BYTES
        _write(answers, wire.LAST if kept else wire.DONE)


def _answer(answers: int, length: int, max_pixels: int, cpu_s: float) -> None:
    """Read one image and write its rows.

    The stream alone holds the encoded image, and is closed once it is decoded.
    """
    stream = _received(length)
    _limit_cpu(cpu_s)
    header = checked_header(stream, max_pixels)
    _limit_cpu(cpu_s + header.width * header.height * wire.CPU_S_PER_PIXEL)
    stream.seek(0)
    written = False
    for band in rgb_bands(stream, header):
        if not written:
            _write(answers, wire.HEADER, json.dumps(header).encode())
            written = True
        _write(answers, wire.ROWS, np.ascontiguousarray(band).reshape(-1).data)


def _received(length: int) -> io.BytesIO:
    """Return the next ``length`` bytes of stdin.

    Raises:
        MemoryError: they do not fit into memory; they are gone from stdin nevertheless.
    """
    try:
        stream = io.BytesIO(bytes(length))
    except MemoryError:
        while length and (piece := os.read(0, min(length, 1 << 16))):
            length -= len(piece)
        raise
    with stream.getbuffer() as view:
        _fill(view)
    return stream


def _fill(view: memoryview) -> bool:
    """Fill ``view`` from stdin; return False if stdin ends first."""
    while view:
        count = os.readv(0, [view])
        if not count:
            return False
        view = view[count:]
    return True


def _write(answers: int, kind: bytes, content: bytes | memoryview = b"") -> None:
    parts = [memoryview(wire.FRAME.pack(kind, len(content))), memoryview(content)]
    while parts:
        count = os.writev(answers, parts)
        while parts and count >= len(parts[0]):
            count -= len(parts.pop(0))
        if parts:
            parts[0] = parts[0][count:]


def _address_space() -> int:
    """Return the bytes of this process's address space, which RLIMIT_AS limits."""
    with open("/proc/self/statm", "rb") as file:
        return int(file.read().split()[0]) * resource.getpagesize()


def _limit_cpu(seconds: float) -> None:
    """Let the kernel end this process by SIGXCPU after so many more seconds of CPU time, or up to one second later."""
    _limit(resource.RLIMIT_CPU, int(time.process_time() + seconds) + 1)


def _limit(kind: int, value: int) -> None:
    most = resource.getrlimit(kind)[1]
    resource.setrlimit(kind, (value if most == resource.RLIM_INFINITY else min(value, most), most))


if __name__ == "__main__":
    with contextlib.suppress(BrokenPipeError):  # whoever asked has ended
        main()
