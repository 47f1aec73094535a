"""What do damaged and hostile files do to what reads them: images, tars, checkpoints and specs?

``python -m benchmarks.fuzz [--seconds 60] [--trials N] [--seed 0] [--only KIND ...]``. Each kind has a process that
damages a good file again and again, at random places and at those that a format's numbers are in, and gives it to the
reader. A trial holds if the reader answers, or raises the error that it has for bad input. Another exception is a
traceback; a trial that takes longer than :data:`HANG_S` is a hang, and its process is ended; one during which the
memory grows beyond the kind's limit (for images 8 bytes for each allowed pixel and 64 MB) counts as ``memory_over``;
the process's memory and that of its children, in which images are decoded.
The input of each trial that does not hold is kept below ``results/fuzz``, with what was said.

The last line on stdout is one JSON object: ``trials, held, tracebacks, hangs, memory_over``, and these by kind; a
process that dies counts as a traceback. The exit status is 1 unless all hold. The same seed gives the same trials.
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import io
import json
import os
import random
import select
import shutil
import subprocess
import sys
import tarfile
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import psutil

HANG_S, START_S = 20.0, 120.0
FOLDER = Path("results/fuzz")
PIXELS = 1_000_000  # that an image may have
MIB = 2**20
OUTCOMES = ("held", "tracebacks", "hangs", "memory_over")
# What a number of a spec is replaced by.
VALUES: tuple[Any, ...] = (
    float("nan"), float("inf"), -float("inf"), -1, 0, 1e308, 2**63, 10**400, True, None, "", "nan", "1e999", "\x1b[2J",
    "../" * 50 + "etc/passwd", "s3://", "x" * 100_000, [], [[]], {}, {"a": 1}, [None] * 1000, "module:Class", "${oops}",
)  # fmt: skip


class Images:
    """Images of each format, damaged, given to the decoder."""

    limit = 8 * PIXELS + 64 * MIB

    def __init__(self, folder: Path) -> None:
        import numpy as np
        from PIL import Image

        pixels = np.random.default_rng(0).integers(0, 256, (60, 80, 3), np.uint8)
        self._files, modes = [], {"JPEG": ("RGB", "CMYK", "L"), "PNG": ("RGBA", "I;16", "P"), "GIF": ("P",)}
        for kind in ("JPEG", "PNG", "GIF", "WEBP", "BMP", "TIFF"):
            for mode in modes.get(kind, ("RGB",)):
                data = io.BytesIO()
                image = Image.fromarray(pixels)
                image = Image.fromarray(pixels[..., 0].astype(np.uint16)) if mode == "I;16" else image.convert(mode)
                image.save(data, kind)
                self._files.append(data.getvalue())
        for file in self._files:
            self.read(file)  # starts the process in which images are decoded

    def trial(self, rng: random.Random) -> bytes:
        """Return the input of a trial."""
        return damaged(rng, rng.choice(self._files), reach=rng.choice((64, 512, 10**9)))

    def read(self, data: bytes) -> None:
        """Give it to the reader; an error for bad input is an answer."""
        from radioplat.data.images.decode import BadSample, decode_rgb

        with contextlib.suppress(BadSample):
            decode_rgb(data, max_pixels=PIXELS)


class Tars:
    """Tars of several dialects, damaged, given to the scan."""

    limit = 256 * MIB

    def __init__(self, folder: Path) -> None:
        from PIL import Image

        self._path, self._files = folder / "fuzz.tar", []
        image = io.BytesIO()
        Image.new("RGB", (16, 12)).save(image, "PNG")
        for dialect in (tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT):
            data = io.BytesIO()
            with tarfile.open(fileobj=data, mode="w", format=dialect) as tar:
                for i in range(4):
                    name = "a long folder, again and again/" * (5 if i == 2 and dialect else 0) + str(i)
                    for ending, content in ((".png", image.getvalue()), (".json", b'{"label": 3, "sha256": "00"}')):
                        info = tarfile.TarInfo(name + ending)
                        info.size, info.mtime = len(content), 1.5
                        tar.addfile(info, io.BytesIO(content))
            self._files.append(data.getvalue())

    def trial(self, rng: random.Random) -> bytes:
        """Return the input of a trial."""
        data = rng.choice(self._files)
        if rng.random() < 0.5:  # in a header's numbers: sizes, checksums, kinds
            at = 512 * rng.randrange(len(data) // 512) + rng.choice((124, 135, 148, 156, 257, 345))
            field = rng.choice((b"77777777777\0", b"\x80" + b"\xff" * 11, b"-1         \0", b"L", b"x", b"g", b"S"))
            data = data[:at] + field + data[at + len(field) :]
        return damaged(rng, data, reach=10**9)

    def read(self, data: bytes) -> None:
        """Give it to the reader."""
        from radioplat.data.scan.shard import scan_tar

        self._path.write_bytes(data)
        scan_tar(str(self._path))


class Checkpoints:
    """A student's checkpoint of which one file is damaged."""

    limit = 512 * MIB

    def __init__(self, folder: Path) -> None:
        import torch

        from radioplat.models.heads import HeadArchitecture
        from radioplat.models.student.checkpoint import save_student
        from radioplat.models.student.student import Student, StudentArchitecture

        self._good, self._bad = folder / "good", folder / "bad"
        self._good.mkdir()
        torch.manual_seed(0)
        heads = (HeadArchitecture("a", 8, 8),)
        student = Student(StudentArchitecture("test_resnet", heads=heads))
        save_student(student, student.state_dict(), self._good)
        self._files = {path.name: path.read_bytes() for path in self._good.iterdir()}

    def trial(self, rng: random.Random) -> bytes:
        """Return the input of a trial: a file's name, a line end, and its content."""
        name = rng.choice(sorted(self._files))
        data = self._files[name]
        header = 8 + int.from_bytes(data[:8], "little")
        if rng.random() < 0.5:  # numbers of the architecture, which is in the header
            spots = [i for i in range(8, header) if chr(data[i]).isdigit()]
            at = rng.choice(spots)
            number = str(rng.choice((0, -1, 10**9, 2**70, "1e400", "NaN", "null", '"x"', "[[[]]]"))).encode()
            text = data[8:at] + number + data[at + 1 : header]
            data = len(text).to_bytes(8, "little") + text + data[header:]
        else:
            data = damaged(rng, data, reach=rng.choice((8, header, len(data))))
        return name.encode() + b"\n" + data

    def read(self, data: bytes) -> None:
        """Give it to the reader; an error for bad input is an answer."""
        from radioplat.errors import RadioplatError
        from radioplat.models.student.checkpoint import load_student

        name, _, content = data.partition(b"\n")
        shutil.rmtree(self._bad, ignore_errors=True)
        shutil.copytree(self._good, self._bad)
        (self._bad / name.decode()).write_bytes(content)
        with contextlib.suppress(RadioplatError):
            load_student(self._bad)


class Specs:
    """A recipe of ours, damaged or with hostile values, read and checked as `plan` does."""

    limit = 512 * MIB

    def __init__(self, folder: Path) -> None:
        import yaml

        recipes = Path(__file__).parents[1] / "specs"
        self._path = folder / "fuzz.yaml"
        self._texts = [path.read_bytes() for path in sorted(recipes.glob("*.yaml"))]
        self._trees = [yaml.safe_load(text) for text in self._texts]

    def trial(self, rng: random.Random) -> bytes:
        """Return the input of a trial: YAML, or JSON whose numbers may be NaN."""
        if rng.random() < 0.3:
            return b"YAML\n" + damaged(rng, rng.choice(self._texts), reach=10**9)
        tree = copy.deepcopy(rng.choice(self._trees))
        for _ in range(rng.randint(1, 3)):
            node, key = rng.choice(list(_places(tree)))
            node[key] = copy.deepcopy(rng.choice(VALUES))
        return json.dumps(tree).encode()

    def read(self, data: bytes) -> None:
        """Give it to the reader; an error for bad input is an answer."""
        from radioplat.errors import RadioplatError
        from radioplat.spec.checks.tasks.training_run import check
        from radioplat.spec.loading.load import load_spec

        given: Any = self._path
        if data.startswith(b"YAML\n"):
            self._path.write_bytes(data[5:])
        else:
            given = json.loads(data)
        with contextlib.suppress(RadioplatError):
            check(load_spec(given))


KINDS: dict[str, Callable[[Path], Any]] = {
    "images": Images,
    "tars": Tars,
    "checkpoints": Checkpoints,
    "specs": Specs,
}


def damaged(rng: random.Random, data: bytes, reach: int) -> bytes:
    """Return ``data`` with a few bytes of its first ``reach`` changed, and sometimes cut short or repeated."""
    found = bytearray(data)
    for _ in range(rng.randint(0, 6)):
        at = rng.randrange(min(reach, len(found)))
        noise = rng.choice((rng.randbytes(rng.randint(1, 8)), b"\xff" * 4, bytes(4), b"\x7f\xff\xff\xff"))
        found[at : at + len(noise)] = noise
    if rng.random() < 0.2:
        found = found[: rng.randrange(len(found))]
    if rng.random() < 0.05:
        found *= 2
    return bytes(found)


def _places(tree: Any) -> Any:  # noqa: ANN401
    items = tree.items() if isinstance(tree, dict) else enumerate(tree)
    for key, value in list(items):
        yield tree, key
        if isinstance(value, (dict, list)):
            yield from _places(value)


def main() -> None:
    """Try, count and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seconds", type=float, default=60.0, help="of all kinds together")
    parser.add_argument("--trials", type=int, help="most of each kind; default: as many as there is time for")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", nargs="+", choices=KINDS, default=list(KINDS), metavar="KIND")
    parser.add_argument("--worker", choices=KINDS, help=argparse.SUPPRESS)
    parser.add_argument("--first", type=int, default=0, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.worker:
        work(given.worker, given.seed, given.first)
        return
    each = given.seconds / len(given.only)
    by_kind = {kind: attack(kind, given.seed, each, given.trials) for kind in given.only}
    total = {name: sum(counts[name] for counts in by_kind.values()) for name in ("trials", *OUTCOMES)}
    print(json.dumps({**total, "seed": given.seed, "by_kind": by_kind}))
    sys.exit(total["trials"] == 0 or total["held"] != total["trials"])


def attack(
    kind: str,
    seed: int,
    seconds: float,
    most: int | None = None,
    program: Sequence[str] = (sys.executable, "-m", "benchmarks.fuzz"),
) -> dict[str, int]:
    """Try one kind for so long; a process that hangs or dies is replaced, behind the trial that it was at."""
    counts, number = Counter[str](), 0
    until = time.monotonic() + seconds
    goes_on = lambda: time.monotonic() < until and number != most  # noqa: E731
    while goes_on():
        command = [*program, "--worker", kind, "--seed", str(seed)]
        began = time.monotonic()
        with subprocess.Popen([*command, "--first", str(number)], stdout=subprocess.PIPE, text=True) as worker:
            outcome = _line(worker, START_S)
            if outcome != "ready":
                raise SystemExit(f"{kind}: the process of trial {number} does not start")
            until += time.monotonic() - began  # a start is no trial
            while outcome in ("ready", "held", "tracebacks", "memory_over") and goes_on():
                outcome = _line(worker, HANG_S)
                counts.update(["trials", "tracebacks" if outcome == "" else outcome])
                if outcome != "held":
                    print(f"{kind}: trial {number} of seed {seed}: {outcome or 'its process died'}", flush=True)
                number += 1
            worker.kill()
        if outcome == "held":  # the trials that it ran ahead of us
            for kept in FOLDER.glob(f"{kind}_{seed}_*"):
                if int(kept.stem.rpartition("_")[2]) >= number:
                    kept.unlink()
    return {name: counts[name] for name in ("trials", *OUTCOMES)}


def _line(worker: subprocess.Popen[str], seconds: float) -> str:
    """Return the next line of a process; ``hangs`` if there is none in time, and nothing if it has ended."""
    assert worker.stdout is not None
    ready, _, _ = select.select([worker.stdout], [], [], seconds)
    return worker.stdout.readline().strip() if ready else "hangs"


def _kept(kind: str, seed: int, number: int) -> Path:
    return FOLDER / f"{kind}_{seed}_{number}"


def work(kind: str, seed: int, first: int) -> None:
    """Run trials from number ``first`` on; print a line when ready, and the outcome of each trial."""
    with tempfile.TemporaryDirectory() as scratch:
        reader = KINDS[kind](Path(scratch))
        number = first
        print("ready", flush=True)
        while True:
            data = reader.trial(random.Random(f"{seed} {kind} {number}"))
            kept = _kept(kind, seed, number)
            FOLDER.mkdir(parents=True, exist_ok=True)
            kept.write_bytes(data)  # first, since the reader may end this process
            print(_outcome(reader, data, kept), flush=True)
            number += 1


def _outcome(reader: Any, data: bytes, kept: Path) -> str:  # noqa: ANN401
    """Give an input to its reader; keep it only if that does not hold."""
    processes = [os.getpid(), *(child.pid for child in psutil.Process().children())]
    before = _memory("VmRSS", processes)
    for process in processes:
        Path(f"/proc/{process}/clear_refs").write_text("5")  # the peak begins anew
    try:
        reader.read(data)
    except BaseException:
        kept.with_suffix(".txt").write_text(traceback.format_exc())
        return "tracebacks"
    peak = _memory("VmHWM", processes)
    # One that shrank meanwhile makes up for none that grew.
    if (grown := sum(max(0, peak[process] - before[process]) for process in peak)) > reader.limit:
        kept.with_suffix(".txt").write_text(f"memory grew by {grown / MIB:.0f} MiB of {reader.limit / MIB:.0f}\n")
        return "memory_over"
    kept.unlink()
    return "held"


def _memory(name: str, processes: Sequence[int]) -> dict[int, int]:
    """Return the bytes of each process that still runs."""
    found = {}
    for process in processes:
        with contextlib.suppress(FileNotFoundError, ProcessLookupError, StopIteration):
            lines = Path(f"/proc/{process}/status").read_text().splitlines()
            found[process] = next(int(line.split()[1]) * 1024 for line in lines if line.startswith(name))
    return found


if __name__ == "__main__":
    main()
