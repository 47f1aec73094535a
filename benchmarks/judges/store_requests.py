"""Which requests reach an object store that refuses some of them? Imports nothing of radioplat.

``python -m benchmarks.judges.store_requests MODULE:FUNCTION`` writes images into shards, serves them as an S3 bucket
on loopback, and lets processes with several threads read each image once, while the store

- ``throttle``: answers 503 SlowDown to requests above a fixed rate;
- ``outage``: for some seconds answers 503 SlowDown to all requests (``--fault slow_down``) or closes their connections
  (``refuse``); it has no limit before and after.

A process calls ``FUNCTION(FOLDER, BUCKET, PROCESS, PROCESSES, THREADS)`` and iterates over what it returns: first an
item that says that it is prepared, then one for each image that it has read. FOLDER is its own and empty, BUCKET the
address of the bucket. The store begins to fail when all processes are prepared, and is found through
``AWS_ENDPOINT_URL``.

The last line on stdout is one JSON object. ``sent``: requests that the store received; ``refused``: those it refused,
as ``refused_share`` of them; ``ideal_s``: images / rate, the time of one request for each; ``seconds``: until all
images were read. ``unread``: images whose bytes were never sent in one answer, which should be 0. Of an outage:
``sent_in_outage``, ``sent_a_second`` in its last two thirds, and seconds from its end until the first image was sent,
and until all were sent that had been asked for during the outage; ``most_in_a_tenth_s``: requests in the fullest tenth
of a second of the first second after it.
"""

from __future__ import annotations

import argparse
import asyncio
import importlib
import io
import json
import os
import random
import sys
import tarfile
import tempfile
import time
from collections import Counter
from email.utils import formatdate
from pathlib import Path
from typing import Any

from aiohttp import web

BUCKET = "corpus"
BURST_S = 0.1  # the store answers so many seconds' worth of requests at once
BORN = 1_700_000_000  # modification time of the shards
SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


Place = tuple[str, int, int]  # of an image: file, first byte, last byte


def shards(images: int, each: int) -> tuple[dict[str, bytes], set[Place]]:
    """Return tars of ``each`` images by name, and the place of each image."""
    from PIL import Image

    files: dict[str, bytes] = {}
    places: set[Place] = set()
    rng = random.Random(0)
    for first in range(0, images, each):
        name, buffer = f"{first // each:04d}.tar", io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w") as tar:
            for number in range(first, min(first + each, images)):
                picture = io.BytesIO()
                Image.frombytes("RGB", (16, 16), rng.randbytes(768)).save(picture, "JPEG")
                member = tarfile.TarInfo(f"{number:06d}.jpg")
                member.size, member.mtime = picture.tell(), BORN
                picture.seek(0)
                tar.addfile(member, picture)
        files[name] = buffer.getvalue()
        buffer.seek(0)
        with tarfile.open(fileobj=buffer) as tar:
            places |= {(name, m.offset_data, m.offset_data + m.size - 1) for m in tar.getmembers()}
    return files, places


class Store:
    """An S3 bucket.

    Args:
        images, each: as of :func:`shards`.

    Attributes:
        rate: requests a second that are answered; None: all.
        fault: ``slow_down`` and ``refuse``: of all requests; "": none.
        log: (time, status) of each request since :meth:`begin`; status 0: the connection was closed.
        sent: times of the answers with an image, by its place, in ``places``; ``asked``: places of refused requests.
    """

    def __init__(self, images: int, each: int) -> None:
        self._files, self.places = shards(images, each)
        self.rate: float | None = None
        self.fault = ""
        self.log: list[tuple[float, int]] = []
        self.sent: dict[Place, list[float]] = {}
        self.asked: set[Place] = set()
        self._free_at = 0.0

    def begin(self) -> None:
        """Forget all requests so far."""
        self.log.clear()
        self.sent = {place: [] for place in self.places}
        self.asked.clear()

    async def answer(self, request: web.Request) -> web.StreamResponse:
        """Answer a request, or refuse it."""
        now = time.monotonic()
        if self.fault and (place := self._place(request)) in self.places:
            self.asked.add(place)
        if self.fault == "refuse":
            self.log.append((now, 0))
            assert request.transport is not None
            request.transport.abort()
            return web.Response()
        if self.fault == "slow_down" or self._too_many(now):
            self.log.append((now, 503))
            return web.Response(status=503, body=SLOW_DOWN, content_type="application/xml")
        answer = self._list(request) if "list-type" in request.query else self._object(request, now)
        self.log.append((now, answer.status))
        return answer

    def _too_many(self, now: float) -> bool:
        if self.rate is None:
            return False
        self._free_at = max(self._free_at, now - BURST_S)
        if self._free_at > now:
            return True
        self._free_at += 1 / self.rate
        return False

    def _place(self, request: web.Request) -> Place:
        """Return the object and bytes that a request asks for; (name, 0, the last byte) without a range."""
        name = request.path.removeprefix(f"/{BUCKET}").strip("/")
        first, _, last = request.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")
        end = len(self._files.get(name, b"")) - 1
        return name, int(first), min(int(last or end), end)

    def _object(self, request: web.Request, now: float) -> web.Response:
        name, first, last = place = self._place(request)
        if not name:
            return web.Response()
        if name not in self._files:
            return web.Response(status=404)
        data, headers = self._files[name], {"Last-Modified": formatdate(BORN, usegmt=True), "ETag": '"x"'}
        if request.method == "HEAD":
            return web.Response(headers=headers | {"Content-Length": str(len(data))})
        if "Range" not in request.headers:
            return web.Response(body=data, headers=headers)
        if place in self.sent:
            self.sent[place].append(now)
        headers["Content-Range"] = f"bytes {first}-{last}/{len(data)}"
        return web.Response(status=206, body=data[first : last + 1], headers=headers)

    def _list(self, request: web.Request) -> web.Response:
        born = time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(BORN))
        rows = "".join(
            f"<Contents><Key>{name}</Key><LastModified>{born}</LastModified><ETag>x</ETag><Size>{len(data)}</Size>"
            "<StorageClass>STANDARD</StorageClass></Contents>"
            for name, data in self._files.items()
            if name.startswith(request.query.get("prefix", ""))
        )
        text = f"<ListBucketResult><Name>{BUCKET}</Name><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
        return web.Response(body=text.encode(), content_type="application/xml")


async def readers(store: Store, given: argparse.Namespace, home: str) -> tuple[float, float]:
    """Let the processes read, while the store fails; return the times of its failure's begin and end.

    Raises:
        RuntimeError: a process failed.
    """
    runner = web.AppRunner(application := web.Application(), access_log=None)
    application.router.add_route("*", "/{path:.*}", store.answer)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    environment = os.environ | {
        "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true", "AWS_ENDPOINT_URL": f"http://127.0.0.1:{runner.addresses[0][1]}",
    }  # fmt: skip
    command = [sys.executable, "-m", "benchmarks.judges.store_requests", given.entry, "--threads", str(given.threads)]
    pipes: dict[str, Any] = {"stdin": asyncio.subprocess.PIPE, "stdout": asyncio.subprocess.PIPE, "env": environment}
    begun = []
    for number in range(given.processes):
        (Path(home) / str(number)).mkdir()
        own = ["--processes", str(given.processes), "--process", str(number), "--folder", f"{home}/{number}"]
        begun.append(await asyncio.create_subprocess_exec(*command, *own, **pipes))
    for each in begun:
        if await each.stdout.readline() != b"prepared\n":
            raise RuntimeError("a process ended before it was prepared")
    store.begin()
    for each in begun:
        each.stdin.write(b"go\n")
    if given.case == "throttle":
        store.rate, begin = given.rate, time.monotonic()
    else:
        await asyncio.sleep(given.after)
        store.fault, begin = given.fault, time.monotonic()
        await asyncio.sleep(given.seconds)
        store.fault = ""
    end = time.monotonic()
    if any([await each.wait() for each in begun]):
        raise RuntimeError("a process failed")
    await runner.cleanup()
    return begin, end


def figures(store: Store, given: argparse.Namespace, begin: float, end: float) -> dict[str, Any]:
    """Return what the store has seen."""
    refused = [at for at, status in store.log if status in (0, 503)]
    last = max(times[0] for times in store.sent.values() if times)
    found: dict[str, Any] = {
        "sent": len(store.log),
        "refused": len(refused),
        "refused_share": round(len(refused) / len(store.log), 4),
        "unread": sum(not times for times in store.sent.values()),
        "read_twice": sum(len(times) > 1 for times in store.sent.values()),
    }
    if given.case == "throttle":
        per_second = Counter(int(at - begin) for at, _ in store.log)
        return found | {
            "ideal_s": round(given.images / given.rate, 1),
            "seconds": round(last - begin, 1),
            "times_the_ideal": round((last - begin) * given.rate / given.images, 2),
            "sent_a_second": [per_second[second] for second in range(int(last - begin) + 1)],
        }
    during = [at for at, _ in store.log if begin <= at < end]
    late = [at for at in during if at >= begin + given.seconds / 3]
    after = [at - end for at, _ in store.log if at >= end]
    sent = [at - end for times in store.sent.values() for at in times if at >= end]
    asked = [next(at for at in store.sent[place] if at >= end) - end for place in store.asked]
    return found | {
        "sent_in_outage": len(during),
        "sent_a_second": round(len(late) / (given.seconds * 2 / 3), 2),
        "asked_in_outage": len(asked),
        "first_read_after_s": round(min(sent), 2),
        "all_asked_read_after_s": round(max(asked), 2),
        "most_in_a_tenth_s": max(Counter(int(at * 10) for at in after if at < 1).values(), default=0),
    }


def read(given: argparse.Namespace) -> None:
    """Be one of the processes."""
    module, _, function = given.entry.partition(":")
    run = getattr(importlib.import_module(module), function)
    arguments = (given.folder, f"s3://{BUCKET}", given.process, given.processes, given.threads)
    items = iter(run(*arguments))
    next(items)
    print("prepared", flush=True)
    sys.stdin.readline()
    for _ in items:
        pass


def main() -> None:
    """Serve and count, and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("entry", metavar="MODULE:FUNCTION")
    parser.add_argument("--case", choices=("throttle", "outage"), default="throttle")
    parser.add_argument("--fault", choices=("slow_down", "refuse"), default="slow_down")
    parser.add_argument("--rate", type=float, default=100.0, help="requests a second that the store answers")
    parser.add_argument("--after", type=float, default=1.0, help="seconds of reading before the outage")
    parser.add_argument("--seconds", type=float, default=60.0, help="length of the outage")
    parser.add_argument("--images", type=int, default=2000)
    parser.add_argument("--shard", type=int, default=400, help="images in a shard")
    parser.add_argument("--processes", type=int, default=4)
    parser.add_argument("--threads", type=int, default=8, help="of a process")
    parser.add_argument("--process", type=int, help=argparse.SUPPRESS)
    parser.add_argument("--folder", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.process is not None:
        return read(given)
    store = Store(given.images, given.shard)
    with tempfile.TemporaryDirectory() as home:
        begin, end = asyncio.run(readers(store, given, home))
    print(json.dumps(figures(store, given, begin, end)))


if __name__ == "__main__":
    main()
