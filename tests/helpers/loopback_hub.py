"""A server on loopback with the parts of the Hugging Face hub's protocol that its client uses to read and write models.

Written after huggingface_hub's client and https://huggingface.co/docs/hub/api; it keeps everything in memory.
"""

from __future__ import annotations

import base64
import hashlib
import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from flask import Flask, Response, request
from werkzeug.serving import make_server

LARGE = 1000  # bytes; a file above is sent by the LFS protocol


@dataclass
class Hub:
    """Repositories by name, each a list of commits, and each commit files by name.

    Attributes:
        gated: repositories whose files need ``token``.
        cut: bytes after which the next answer with a file's content ends; 0: none.
        requests: method, path and Range of all requests.
    """

    url: str = ""
    repositories: dict[str, list[dict[str, bytes]]] = field(default_factory=dict)
    libraries: dict[str, str] = field(default_factory=dict)
    gated: set[str] = field(default_factory=set)
    token: str = "hf_secret"
    cut: int = 0
    objects: dict[str, bytes] = field(default_factory=dict)
    requests: list[tuple[str, str, str]] = field(default_factory=list)

    def put(self, repository: str, **files: bytes) -> None:
        """Add a commit; ``__`` in a name stands for a dot."""
        commits = self.repositories.setdefault(repository, [])
        commits.append((dict(commits[-1]) if commits else {}) | {n.replace("__", "."): f for n, f in files.items()})

    def commit_of(self, repository: str, revision: str) -> int | None:
        """Return the number of a commit; the newest for ``main``."""
        commits = self.repositories[repository]
        hashes = [sha(repository, i) for i in range(len(commits))]
        if revision in ("", "main"):
            return len(commits) - 1
        return hashes.index(revision) if revision in hashes else None


def sha(repository: str, number: int) -> str:
    """Return the hash of a commit."""
    return hashlib.sha1(f"{repository} {number}".encode()).hexdigest()


def _error(code: int, kind: str) -> Response:
    return Response(json.dumps({"error": kind}), code, {"X-Error-Code": kind, "X-Error-Message": kind})


@contextmanager
def loopback_hub() -> Iterator[Hub]:
    """Serve a hub until the block ends."""
    hub = Hub()
    server = make_server("127.0.0.1", 0, _app(hub), threaded=True)
    hub.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        thread.join()


def _app(hub: Hub) -> Flask:
    app = Flask("hub")

    @app.before_request
    def _remember() -> Response | None:
        hub.requests.append((request.method, request.path, request.headers.get("Range", "")))
        parts = request.path.removeprefix("/api/models/").strip("/").split("/")
        repository = "/".join(parts[:2])
        if repository in hub.gated and request.headers.get("Authorization") != f"Bearer {hub.token}":
            return _error(403, "GatedRepo") if "/resolve/" in request.path else None
        return None

    @app.get("/api/models/<org>/<name>")
    @app.get("/api/models/<org>/<name>/revision/<path:revision>")
    def _info(org: str, name: str, revision: str = "main") -> Response:
        repository = f"{org}/{name}"
        if repository not in hub.repositories:
            return _error(404, "RepoNotFound")
        if (number := hub.commit_of(repository, revision)) is None:
            return _error(404, "RevisionNotFound")
        files = hub.repositories[repository][number]
        siblings = [{"rfilename": each, "size": len(files[each])} for each in files]
        return Response(
            json.dumps(
                {
                    "id": repository,
                    "modelId": repository,
                    "sha": sha(repository, number),
                    "private": False,
                    "gated": "auto" if repository in hub.gated else False,
                    "library_name": hub.libraries.get(repository),
                    "siblings": siblings,
                    "tags": [],
                }
            ),
            mimetype="application/json",
        )

    @app.get("/api/models/<org>/<name>/tree/<revision>")
    @app.get("/api/models/<org>/<name>/tree/<revision>/")
    def _tree(org: str, name: str, revision: str) -> Response:
        number = hub.commit_of(f"{org}/{name}", revision)
        if number is None:
            return _error(404, "RevisionNotFound")
        files = hub.repositories[f"{org}/{name}"][number]
        rows = [{"type": "file", "path": each, "size": len(files[each]), "oid": sha(each, 0)} for each in files]
        return Response(json.dumps(rows), mimetype="application/json")

    @app.route("/<org>/<name>/resolve/<revision>/<path:file>", methods=["GET", "HEAD"])
    def _resolve(org: str, name: str, revision: str, file: str) -> Response:
        repository = f"{org}/{name}"
        if repository not in hub.repositories:
            return _error(404, "RepoNotFound")
        number = hub.commit_of(repository, revision)
        if number is None:
            return _error(404, "RevisionNotFound")
        content = hub.repositories[repository][number].get(file)
        if content is None:
            return _error(404, "EntryNotFound")
        digest = hashlib.sha256(content).hexdigest()
        headers = {"ETag": f'"{digest}"', "X-Repo-Commit": sha(repository, number), "Accept-Ranges": "bytes"}
        headers |= {"X-Linked-Size": str(len(content)), "X-Linked-Etag": f'"{digest}"'}
        return _content(hub, content, headers)

    @app.get("/plain/<name>")
    def _plain(name: str) -> Response:
        return _content(hub, hub.objects[name], {})

    @app.post("/api/repos/create")
    def _create() -> Response:
        asked = request.get_json()
        repository = "/".join(filter(None, [asked.get("organization"), asked["name"]]))
        if request.headers.get("Authorization") != f"Bearer {hub.token}":
            return _error(401, "Unauthorized")
        if repository in hub.repositories:
            return Response(json.dumps({"error": "exists", "url": f"{hub.url}/{repository}"}), 409)
        hub.repositories[repository] = [{}]
        return Response(json.dumps({"url": f"{hub.url}/{repository}"}), mimetype="application/json")

    @app.post("/api/validate-yaml")
    def _validate() -> Response:
        return Response(json.dumps({"errors": [], "warnings": []}), mimetype="application/json")

    @app.get("/api/whoami-v2")
    def _whoami() -> Response:
        return Response(json.dumps({"name": "me", "type": "user"}), mimetype="application/json")

    @app.post("/api/models/<org>/<name>/preupload/<revision>")
    def _preupload(org: str, name: str, revision: str) -> Response:
        files = [
            {
                "path": each["path"],
                "uploadMode": "lfs" if each["size"] > LARGE else "regular",
                "shouldIgnore": False,
                "oid": None,
            }
            for each in request.get_json()["files"]
        ]
        return Response(json.dumps({"files": files}), mimetype="application/json")

    @app.post("/<org>/<name>.git/info/lfs/objects/batch")
    def _batch(org: str, name: str) -> Response:
        objects = [
            {
                "oid": each["oid"],
                "size": each["size"],
                "actions": {"upload": {"href": f"{hub.url}/lfs/{each['oid']}", "header": {}}},
            }
            for each in request.get_json()["objects"]
        ]
        return Response(json.dumps({"transfer": "basic", "objects": objects}), mimetype="application/vnd.git-lfs+json")

    @app.put("/lfs/<oid>")
    def _store(oid: str) -> Response:
        content = request.get_data()
        if hashlib.sha256(content).hexdigest() != oid:
            return _error(400, "WrongContent")
        hub.objects[oid] = content
        return Response("")

    @app.post("/api/models/<org>/<name>/commit/<revision>")
    def _commit(org: str, name: str, revision: str) -> Response:
        repository = f"{org}/{name}"
        files = dict(hub.repositories[repository][-1])
        for line in request.get_data().decode().splitlines():
            entry = json.loads(line)
            value = entry["value"]
            if entry["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif entry["key"] == "lfsFile":
                files[value["path"]] = hub.objects[value["oid"]]
            elif entry["key"] == "deletedFile":
                del files[value["path"]]
        hub.repositories[repository].append(files)
        number = len(hub.repositories[repository]) - 1
        answer = {
            "success": True,
            "commitOid": sha(repository, number),
            "commitUrl": f"{hub.url}/{repository}/commit/{sha(repository, number)}",
            "hookOutput": "",
        }
        return Response(json.dumps(answer), mimetype="application/json")

    return app


def _content(hub: Hub, content: bytes, headers: dict[str, str]) -> Response:
    """Answer with content from the first byte of the range on; cut off once if the hub shall."""
    begin = int((request.headers.get("Range") or "bytes=0-").removeprefix("bytes=").partition("-")[0])
    if begin and begin >= len(content):
        return Response("", 416)
    rest, code = content[begin:], 206 if begin else 200
    headers |= {"Content-Length": str(len(rest))}
    if begin:
        headers["Content-Range"] = f"bytes {begin}-{len(content) - 1}/{len(content)}"
    if request.method == "HEAD":
        return Response("", code, headers)
    if hub.cut:
        rest, hub.cut = rest[: hub.cut], 0

    def pieces() -> Iterator[bytes]:
        yield rest

    return Response(pieces(), code, headers)
