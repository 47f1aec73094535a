"""A small S3 server over a folder, for tests: a process of its own, which can be stopped, killed and started again.

``python s3_folder.py FOLDER PORT KEYS``: objects are files, buckets are folders. A request that is signed with another
access key than one of the file ``KEYS`` is answered as S3 answers one with an expired token; without that file all are
served. Beside it, the file ``broken`` has parts of paths, one a line, whose requests are answered with an internal
error, and ``requests`` gets a line for each request: its time and path.
"""

from __future__ import annotations

import contextlib
import sys
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit


class Handler(BaseHTTPRequestHandler):
    """GET and HEAD of objects, HEAD of buckets."""

    protocol_version = "HTTP/1.1"
    folder: Path
    keys: Path

    def do_GET(self) -> None:
        """An object, or a range of it."""
        key = self.headers.get("Authorization", "").partition("Credential=")[2].partition("/")[0]
        if self.keys.exists() and key not in self.keys.read_text().split():
            return self._error(400, "ExpiredToken")
        with open(self.keys.with_name("requests"), "a") as requests:
            requests.write(f"{time.time()} {self.path}\n")
        with contextlib.suppress(FileNotFoundError):
            if any(part in self.path for part in self.keys.with_name("broken").read_text().split()):
                return self._error(500, "InternalError")
        path = self.folder / unquote(urlsplit(self.path).path).strip("/")
        if path.is_dir():
            return self._answer(200, b"")
        if not path.is_file():
            bucket = self.folder / path.relative_to(self.folder).parts[0]
            return self._error(404, "NoSuchKey" if bucket.is_dir() else "NoSuchBucket")
        data, status, headers = path.read_bytes(), 200, {"Last-Modified": formatdate(path.stat().st_mtime, usegmt=True)}
        if wanted := self.headers.get("Range"):
            first, last = (int(place) for place in wanted.removeprefix("bytes=").split("-"))
            headers["Content-Range"] = f"bytes {first}-{min(last, len(data) - 1)}/{len(data)}"
            data, status = data[first : last + 1], 206
        return self._answer(status, data, headers)

    do_HEAD = do_GET

    def _error(self, status: int, code: str) -> None:
        body = f"<?xml version='1.0'?><Error><Code>{code}</Code><Message>{code}</Message></Error>".encode()
        self._answer(status, body, {"Content-Type": "application/xml"})

    def _answer(self, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
        self.send_response(status)
        for name, value in {"Content-Length": str(len(body)), "ETag": '"x"', **(headers or {})}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def log_message(self, *arguments: object) -> None:
        """Nothing."""


if __name__ == "__main__":
    Handler.folder, Handler.keys = Path(sys.argv[1]), Path(sys.argv[3])
    server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler)
    print(server.server_port, flush=True)
    server.serve_forever()
