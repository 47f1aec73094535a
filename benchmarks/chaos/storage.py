"""A loopback S3 server, a proxy in front of it that fails, and what is done to runs that read and copy there."""

from __future__ import annotations

import contextlib
import random
import shutil
import signal
import socket
import threading
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.chaos.process import HANG_S
from benchmarks.chaos.trial import STEPS, Quiet, Trial

BUCKET = "chaos"
FAULTS = ("refuse", "hang", "slow_down", "cut")
_SLOW_DOWN = b"<Error><Code>SlowDown</Code><Message>Please reduce your request rate.</Message></Error>"


class Store:
    """moto's S3 on loopback, with the bucket :data:`BUCKET`.

    Args:
        address: that it listens at.
    """

    def __init__(self, address: str = "127.0.0.1") -> None:
        import boto3
        from moto.server import DomainDispatcherApplication, create_backend_app
        from werkzeug.serving import WSGIRequestHandler, make_server

        class Quietly(WSGIRequestHandler):
            def log_request(self, *arguments: object) -> None:
                """Say nothing."""

        application = DomainDispatcherApplication(create_backend_app)
        self._server = make_server(address, 0, application, threaded=True, request_handler=Quietly)
        self.address = address, self._server.server_port
        threading.Thread(target=self._server.serve_forever, daemon=True).start()
        keys = {"aws_access_key_id": "key", "aws_secret_access_key": "secret", "region_name": "us-east-1"}
        self.client = boto3.client("s3", endpoint_url=f"http://{address}:{self.address[1]}", **keys)
        self.client.create_bucket(Bucket=BUCKET)

    def put_folder(self, folder: Path, prefix: str) -> None:
        """Upload the files of a folder."""
        for path in sorted(folder.iterdir()):
            self.client.put_object(Bucket=BUCKET, Key=f"{prefix}/{path.name}", Body=path.read_bytes())

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()


class Proxy:
    """A TCP proxy in front of a store.

    Args:
        store: address of the store.
        address: that it listens at.
        delay_s: by which each piece of data is late, in each direction.
        lost: share of the pieces that are late by 0.2 s more, as after a lost packet.

    Attributes:
        url: of the proxy.
        fault: "" passes; ``refuse`` closes connections, ``hang`` says nothing, ``slow_down`` answers 503 to each
            request, ``cut`` closes after 2,000 bytes of an answer. A change closes all connections.
    """

    def __init__(self, store: tuple[str, int], address: str = "127.0.0.1", delay_s: float = 0, lost: float = 0) -> None:
        self._store, self.fault, self._delay_s, self._lost = store, "", delay_s, lost
        self._open: set[socket.socket] = set()
        self._listener = socket.create_server((address, 0), backlog=64)
        self.url = f"http://{address}:{self._listener.getsockname()[1]}"
        threading.Thread(target=self._accept, daemon=True).start()

    @contextlib.contextmanager
    def failing(self, fault: str) -> Iterator[None]:
        """Fail during the block."""
        self.set(fault)
        try:
            yield
        finally:
            self.set("")

    def set(self, fault: str) -> None:
        """Change what is done, and close what is open."""
        self.fault = fault
        for each in list(self._open):
            with contextlib.suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)

    def _accept(self) -> None:
        while True:
            client, _ = self._listener.accept()
            self._open.add(client)
            threading.Thread(target=self._serve, args=(client,), daemon=True).start()

    def _serve(self, client: socket.socket) -> None:
        fault, server = self.fault, None
        try:
            if fault == "hang":
                while self.fault == "hang":
                    time.sleep(0.05)
            elif fault == "slow_down":
                client.recv(65536)
                head = f"HTTP/1.1 503 Slow Down\r\nContent-Type: application/xml\r\nContent-Length: {len(_SLOW_DOWN)}"
                client.sendall(f"{head}\r\nConnection: close\r\n\r\n".encode() + _SLOW_DOWN)
            elif fault != "refuse":
                server = socket.create_connection(self._store)
                self._open.add(server)
                threading.Thread(target=self._pump, args=(client, server, None), daemon=True).start()
                self._pump(server, client, 2000 if fault == "cut" else None)
        except OSError:
            pass  # one of the two sides has closed its connection
        finally:
            for each in (client, server):
                if each is not None:
                    self._open.discard(each)
                    with contextlib.suppress(OSError):
                        each.shutdown(socket.SHUT_RDWR)
                    each.close()

    def _pump(self, source: socket.socket, target: socket.socket, most: int | None) -> None:
        """Copy bytes until one side closes, or ``most`` are copied."""
        with contextlib.suppress(OSError):
            while (data := source.recv(65536)) and (most is None or most > 0):
                if self._delay_s:
                    time.sleep(self._delay_s + (0.2 if random.random() < self._lost else 0))
                target.sendall(data if most is None else data[:most])
                most = None if most is None else most - len(data)


def environment(url: str) -> dict[str, str]:
    """Return the variables by which a run finds the store."""
    return {
        "AWS_ACCESS_KEY_ID": "key", "AWS_SECRET_ACCESS_KEY": "secret", "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true", "AWS_ENDPOINT_URL": url,
    }  # fmt: skip


def changes(name: str) -> dict[str, object]:
    """Return the spec's fields of a run whose images and copies are in the store, the copies below ``name``."""
    return {
        "dataset.train_dataset.tar_data_sources.0.root_dir": f"s3://{BUCKET}/shards",
        "dataset.read_timeout_s": 2.0,
        "train.checkpoint_dir": f"s3://{BUCKET}/{name}",
        "train.max_checkpoint_failures": 20,
    }


def outage(trial: Trial, quiet: Quiet, proxy: Proxy) -> None:
    """The store fails for some seconds, in several ways, while the run goes on."""
    begun = trial.start()
    for _ in range(trial.rng.randint(1, 3)):
        step, fault, seconds = trial.steps(), trial.rng.choice(FAULTS), trial.rng.uniform(0.5, 6)
        step += trial.rng.randint(1, 8)
        if begun.until(lambda: trial.steps() >= step):  # noqa: B023 (called here alone)
            deadline = time.monotonic() + seconds
            with proxy.failing(fault):
                begun.until(lambda: time.monotonic() > deadline)  # noqa: B023
            trial.done.append(f"{fault} for {seconds:.1f} s after step {step}")
    if begun.wait() != 0:
        trial.problems.append(f"exit status {begun.status}: {begun.text.strip()[-300:]}")


def outage_at_a_start(trial: Trial, quiet: Quiet, proxy: Proxy) -> None:
    """The store fails while a run is continued: it waits or ends with a named error, and goes on later."""
    begun, step = trial.start(), trial.rng.randint(EVERY_FIRST, STEPS - 1)
    if begun.until(lambda: trial.steps() >= step):
        begun.kill()
    begun.wait()
    fault, seconds = trial.rng.choice(FAULTS), trial.rng.uniform(0.5, 6)
    with proxy.failing(fault):
        again, deadline = trial.start(), time.monotonic() + seconds
        again.until(lambda: time.monotonic() > deadline)
    status = again.wait()
    trial.done.append(f"{fault} for {seconds:.1f} s at the start after step {step}: exit {status}")
    if status not in (0, 1, 75):
        trial.problems.append(f"exit status {status}: {again.text.strip()[-300:]}")
    trial.finish()


def lost_folder(trial: Trial, quiet: Quiet, proxy: Proxy) -> None:
    """It is killed and its folder is lost; what is in the store brings it back."""
    for _ in range(trial.rng.randint(1, 2)):
        begun, step = trial.start(), trial.rng.randint(1, STEPS - 1)
        if begun.until(lambda: trial.steps() >= step):  # noqa: B023
            begun.kill(signal.SIGKILL)
        begun.wait(HANG_S)
        shutil.rmtree(trial.run, ignore_errors=True)
        trial.done.append(f"killed after step {step}, the folder is lost")
    trial.finish()


EVERY_FIRST = 5  # after the first checkpoint
KINDS = {each.__name__: each for each in (outage, outage_at_a_start, lost_folder)}
