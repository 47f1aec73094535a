"""A server on loopback that W&B's client takes for one: it keeps what it is told, falls silent, or hangs up."""

from __future__ import annotations

import json
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


class WandbServer:
    """Answers what a run asks of a server, in W&B's own GraphQL and file-stream protocol.

    Attributes:
        rows: what came as history, by run.
        runs: the variables of each run's creation, by run.
        asked: every GraphQL text, with its variables.
    """

    def __init__(self) -> None:
        self.rows: dict[str, list[dict]] = {}
        self.runs: dict[str, dict] = {}
        self.asked: list[tuple[str, dict]] = []
        self._speaks = threading.Event()
        self._speaks.set()
        self._gone = threading.Event()
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def log_message(self, *parts) -> None:
                """Say nothing."""

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                if not outer._speaks.is_set():
                    outer._gone.wait()
                    return
                data = json.dumps(outer._answer(self.path, body)).encode()
                self.send_response(200)
                self.send_header("Content-Type", "application/json")
                self.send_header("Content-Length", str(len(data)))
                self.end_headers()
                self.wfile.write(data)

            do_GET = do_PUT = do_POST

        class Server(ThreadingHTTPServer):
            def handle_error(self, request, client_address) -> None:
                """Clients that hang up are no news."""

        self._server = Server(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def fall_silent(self) -> None:
        """Take every request and answer none, as a network that swallows packets."""
        self._speaks.clear()

    def close(self) -> None:
        """Refuse connections."""
        self._gone.set()
        self._server.shutdown()
        self._server.server_close()

    def _known(self, name: str) -> dict | None:
        if name not in self.runs:
            return None
        rows = self.rows.get(name, [])
        counts = {"historyLineCount": len(rows), "logLineCount": 0, "eventsLineCount": 0}
        tails = {"historyTail": json.dumps([json.dumps(row) for row in rows[-1:]]), "eventsTail": "[]"}
        bucket = {"id": "b", "name": name, "displayName": "n", "summaryMetrics": "{}", "config": "{}", "tags": []}
        bucket |= {"wandbConfig": '{"t": 1}'} | counts | tails
        return {"id": "p", "name": "p", "entity": {"id": "e", "name": "us"}, "bucket": bucket}

    def _answer(self, path: str, body: bytes) -> dict:
        if path.endswith("/file_stream"):
            said = json.loads(body)
            if history := said.get("files", {}).get("wandb-history.jsonl"):
                rows, begin = self.rows.setdefault(path.split("/")[-2], []), history["offset"]
                rows[begin : begin + len(history["content"])] = map(json.loads, history["content"])
            return {}
        try:
            said = json.loads(body)
        except ValueError:
            return {}
        text, values = said.get("query", ""), said.get("variables") or {}
        self.asked.append((text, values))
        if "RunResumeStatus" in text:
            return {"data": {"model": self._known(values["name"])}}
        if "upsertBucket" in text:
            self.runs.setdefault(values["name"], values)
            project = {"id": "p", "name": values.get("project") or "p", "entity": {"id": "e", "name": "us"}}
            bucket = {"id": "b", "name": values["name"], "displayName": "n", "config": "{}", "project": project}
            return {"data": {"upsertBucket": {"bucket": bucket | {"historyLineCount": 0}, "inserted": True}}}
        if "createRunFiles" in text:
            files = [{"name": name, "uploadUrl": f"{self.url}/storage/{name}"} for name in values["files"]]
            return {"data": {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}}
        if "createArtifact(" in text:  # known by its digest: nothing is to be uploaded
            asked = values.get("input", values)
            artifact = {"id": f"artifact-{asked['digest']}", "state": "COMMITTED"}
            sequence = {"id": "s", "latestArtifact": {"id": artifact["id"], "versionIndex": 0}}
            return {"data": {"createArtifact": {"artifact": artifact | {"artifactSequence": sequence}}}}
        if "useArtifact(" in text:
            return {"data": {"useArtifact": {"artifact": {"id": "a", "digest": "d", "description": "", "state": ""}}}}
        if "viewer" in text:
            viewer = {"id": "v", "entity": "us", "username": "us", "email": "", "flags": "{}", "teams": {"edges": []}}
            return {"data": {"viewer": viewer}}
        return {"data": {}}
