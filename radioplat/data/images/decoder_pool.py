"""Decode images in processes apart, so that no file can stop, slow down or end the process that reads it.

A process (:mod:`radioplat.data.images.decoder_process`) is started with the first image, and serves one thread at a
time; there are at most as many as threads that decode at once. The kernel limits its memory and its CPU time.
"""

from __future__ import annotations

import atexit
import contextlib
import fcntl
import json
import os
import select
import signal
import struct
import subprocess
import sys
from typing import NamedTuple

import numpy as np

from radioplat.data.images.headers import ImageHeader
from radioplat.errors import DecoderError

# Seconds of CPU time for any image, and for each of its pixels: a BMP with run lengths, the slowest of the formats,
# takes 0.15 us for one. Time of the CPU, not of the clock: a busy machine makes no image bad.
CPU_S, CPU_S_PER_PIXEL = 10.0, 1e-6
STILL_S = 300.0  # a process that used no CPU for so long is stopped by something else than its image
_LOOK_S = 10.0
_PIPE_BYTES = _MOST_WORDS = 1 << 20
_ENVIRONMENT = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    # glibc keeps the memory of a small image for the next one, and returns that of a large one.
    "MALLOC_MMAP_THRESHOLD_": str(8 * 2**20),
    "MALLOC_TRIM_THRESHOLD_": str(16 * 2**20),
}
OVER_MEMORY = "corrupt_image", "the decoder needs more memory than 8 bytes for each allowed pixel and 64 MB"

# A request: bytes of the image, allowed pixels, CPU_S. The image follows.
REQUEST = struct.Struct("=QQd")
# An answer is a sequence of frames: a kind, and the length of what follows.
FRAME = struct.Struct("=cQ")
READY = b"r"  # the process has started
HEADER = b"h"  # the image's header, as JSON
ROWS = b"p"  # RGB of the next rows
REFUSED = b"e"  # why the image cannot be used, as JSON: reason and detail
DONE = b"d"  # the end of an answer; the process takes the next image
LAST = b"l"  # the end of an answer; the process ends, since it could not free its memory


class Pixels(NamedTuple):
    """A decoded image.

    Attributes:
        rgb: uint8 ``[h, w, 3]`` of ``header.stored_size``; the orientation is not applied.
    """

    header: ImageHeader
    rgb: np.ndarray


class Refusal(NamedTuple):
    """Why an image cannot be used; see :class:`radioplat.data.images.decode.BadSample`."""

    reason: str
    detail: str = ""


class _Ended(Exception):
    """The process has ended, or its answer is none."""


class _Still(Exception):
    """The process has used no CPU for :data:`STILL_S`."""


def most_memory(max_pixels: int) -> int:
    """Return the bytes of memory that decoding may take if images of ``max_pixels`` are allowed."""
    return 8 * max_pixels + 64 * 2**20


def decode(data: bytes, max_pixels: int) -> Pixels | Refusal:
    """Decode an image in a process apart.

    A process may be ended from outside, for example where the machine's memory runs out: unless it ended by its limit
    of CPU time, the image gets another one, and is at fault only if that ends too.

    Raises:
        DecoderError: a process cannot be started, or was stopped while it decoded (SIGSTOP), and so was the next one.
    """
    if len(data) > most_memory(max_pixels):
        return Refusal(*OVER_MEMORY)
    failures: list[tuple[type[Exception], str]] = []
    while len(failures) < 2:
        process = _pool.take()
        try:
            answer = process.decode(data, max_pixels)
        except (_Ended, _Still) as error:
            status = process.end()
            if status == -signal.SIGXCPU:
                return Refusal("too_slow", f"decoding takes more than {CPU_S:g} s of CPU time and 1 us for each pixel")
            failures.append((type(error), _words(status)))
        except BaseException:
            process.end()
            raise
        else:
            _pool.give_back(process)
            return answer
    if failures[-1][0] is _Still:
        message = f"the process that decodes an image used no CPU for {STILL_S:g} s, and so did a second one"
        raise DecoderError(message, hint="See what stops it: a debugger, a frozen cgroup, a suspended machine.")
    return Refusal("corrupt_image", f"decoding ended its process {failures[0][1]}, and a second one {failures[1][1]}")


def _words(status: int) -> str:
    """Say how a process ended, by its ``returncode``."""
    if status >= 0:
        return f"with exit status {status}"
    with contextlib.suppress(ValueError):
        return f"by {signal.Signals(-status).name}"
    return f"by signal {-status}"


class DecoderProcess:
    """A running process, which decodes one image at a time.

    Attributes:
        pid: its process id.
        goes_on: False after it has said that it takes no other image.

    Raises:
        DecoderError: it cannot be started.
    """

    def __init__(self) -> None:
        # It imports from where this process does, and never from the current folder.
        folders = os.pathsep.join(folder or os.getcwd() for folder in sys.path)
        environment = {**os.environ, **_ENVIRONMENT, "PYTHONPATH": folders}
        command = [sys.executable, "-P", "-m", "radioplat.data.images.decoder_process"]
        hint = "Is there memory, and are more processes allowed (ulimit -u, pids.max of the cgroup)?"
        try:
            # In a session of its own: Ctrl-C is for the process that waits. It ends when its input does, that is with
            # this process; PR_SET_PDEATHSIG would end it with the thread that started it.
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                bufsize=0,
                env=environment,
                start_new_session=True,
            )
        except OSError as error:
            raise DecoderError(f"the process that decodes images cannot be started: {error}", hint=hint) from error
        assert self._process.stdin is not None and self._process.stdout is not None
        self.pid, self.goes_on = self._process.pid, True
        self._in, self._out = self._process.stdin.fileno(), self._process.stdout.fileno()
        for pipe in (self._in, self._out):
            os.set_blocking(pipe, False)
            with contextlib.suppress(OSError):  # a user may have only so many bytes in pipes
                fcntl.fcntl(pipe, fcntl.F_SETPIPE_SZ, _PIPE_BYTES)
        try:
            self._frame()
        except (_Ended, _Still):
            message = f"the process that decodes images ended {_words(self.end())} before its first image"
            raise DecoderError(message, hint=hint) from None

    def decode(self, data: bytes, max_pixels: int) -> Pixels | Refusal:
        """Decode an image."""
        self._send(REQUEST.pack(len(data), max_pixels, CPU_S))
        self._send(data)
        answer: Pixels | Refusal | None = None
        missing = memoryview(b"")
        while True:
            kind, length = self._frame()
            if kind != ROWS and length > _MOST_WORDS:
                raise _Ended
            if kind == ROWS and length <= len(missing):
                self._receive(missing[:length])
                missing = missing[length:]
            elif kind == HEADER:
                header = ImageHeader(*json.loads(self._bytes(length)))
                width, height = header.stored_size
                answer = Pixels(header, np.empty((height, width, 3), np.uint8))
                missing = answer.rgb.reshape(-1).data
            elif kind == REFUSED:
                answer, missing = Refusal(*json.loads(self._bytes(length))), memoryview(b"")
            elif kind in (DONE, LAST) and answer is not None and not missing:
                self.goes_on = kind == DONE
                return answer
            else:
                raise _Ended

    def runs(self) -> bool:
        """Return False if it has ended, for example where the machine's memory ran out, or is not this process's child.

        After a fork it is the parent's, which goes on with it.
        """
        return self._process.poll() is None

    def end(self) -> int:
        """End it if it runs, and return its ``returncode``."""
        self._process.kill()
        status = self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            assert pipe is not None
            pipe.close()
        return status

    def _send(self, data: bytes) -> None:
        view = memoryview(data)
        while view:
            try:
                view = view[os.write(self._in, view) :]
            except BlockingIOError:
                self._wait(self._in, select.POLLOUT)
            except BrokenPipeError:
                raise _Ended from None

    def _frame(self) -> tuple[bytes, int]:
        kind, length = FRAME.unpack(self._bytes(FRAME.size))
        return kind, length

    def _bytes(self, length: int) -> bytes:
        data = bytearray(length)
        self._receive(memoryview(data))
        return bytes(data)

    def _receive(self, view: memoryview) -> None:
        while view:
            try:
                count = os.readv(self._out, [view])
            except BlockingIOError:
                self._wait(self._out, select.POLLIN)
                continue
            if not count:
                raise _Ended
            view = view[count:]

    def _wait(self, pipe: int, event: int) -> None:
        """Wait until ``pipe`` is ready.

        Raises:
            _Still: the process has used no CPU for a long time. Looks are counted, not seconds of the clock, which
                goes on while a whole machine is stopped.
        """
        poll = select.poll()
        poll.register(pipe, event)
        used, still = 0.0, 0
        while not poll.poll(_LOOK_S * 1000):
            import psutil  # hardly ever needed

            with contextlib.suppress(psutil.Error):
                before, used = used, sum(psutil.Process(self.pid).cpu_times()[:2])
                still = still + 1 if used == before else 0
            if still * _LOOK_S >= STILL_S:
                raise _Still


class _Pool:
    """The idle processes; the one that was used last comes first. No lock, which a fork might find held."""

    def __init__(self) -> None:
        self._idle: list[DecoderProcess] = []

    def take(self) -> DecoderProcess:
        """Return an idle process, or start one."""
        with contextlib.suppress(IndexError):
            while True:
                process = self._idle.pop()
                if process.runs():
                    return process
                process.end()
        return DecoderProcess()

    def give_back(self, process: DecoderProcess) -> None:
        """Keep a process for the next image."""
        if process.goes_on:
            self._idle.append(process)
        else:
            process.end()

    def end_all(self) -> None:
        """End the idle processes."""
        with contextlib.suppress(IndexError):
            while True:
                self._idle.pop().end()


_pool = _Pool()
atexit.register(_pool.end_all)
