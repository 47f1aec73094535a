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

    def _answer(self, path: str, body: bytes) -> dict:
        if path.endswith("/file_stream"):
            said = json.loads(body)
            lines = said.get("files", {}).get("wandb-history.jsonl", {}).get("content", [])
            self.rows.setdefault(path.split("/")[-2], []).extend(map(json.loads, lines))
            return {}
        try:
            said = json.loads(body)
        except ValueError:
            return {}
        text, values = said.get("query", ""), said.get("variables") or {}
        self.asked.append((text, values))
        if "upsertBucket" in text:
            self.runs.setdefault(values["name"], values)
            project = {"id": "p", "name": values.get("project") or "p", "entity": {"id": "e", "name": "us"}}
            bucket = {"id": "b", "name": values["name"], "displayName": "n", "config": "{}", "project": project}
            return {"data": {"upsertBucket": {"bucket": bucket | {"historyLineCount": 0}, "inserted": True}}}
        if "createRunFiles" in text:
            files = [{"name": name, "uploadUrl": f"{self.url}/storage/{name}"} for name in values["files"]]
            return {"data": {"createRunFiles": {"runID": "b", "uploadHeaders": [], "files": files}}}
        if "viewer" in text:
            viewer = {"id": "v", "entity": "us", "username": "us", "email": "", "flags": "{}", "teams": {"edges": []}}
            return {"data": {"viewer": viewer}}
        return {"data": {}}
