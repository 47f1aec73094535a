"""Submit a job to a cluster's dashboard and follow it to its end; used by jobs/submit.py."""

from __future__ import annotations

import asyncio
import os
import shlex
import signal
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import requests
import yaml
from aiohttp import ClientError
from ray.exceptions import RayError
from ray.job_submission import JobStatus, JobSubmissionClient

from radioplat.cluster.connection import check_can_join
from radioplat.common import terminal
from radioplat.errors import ClusterError, SpecError

_ANSWER_S, _PAUSE_S = 10.0, 2.0


def submit(
    command: Sequence[str], address: str | None, name: str = "", runtime_env: Path | None = None, wait_s: float = 0.0
) -> int:
    """Submit ``command`` and print its output until it ends; forward SIGTERM to it.

    Args:
        address: URL of the dashboard; RAY_API_SERVER_ADDRESS and RAY_ADDRESS take precedence, as in Ray's own commands.
        name: if a job of this name runs already, follow that one.
        runtime_env: a YAML file.
        wait_s: time to wait for a cluster that does not answer yet.

    Returns:
        The exit status of the command; 75 if it was stopped, or the connection to the cluster was lost.

    Raises:
        ClusterError: the cluster did not answer within ``wait_s``, or rejects the request.
        SpecError: ``runtime_env`` cannot be read.
    """
    environment = _read(runtime_env) if runtime_env else None
    client = _client(address or None, wait_s)
    try:
        job = _running_or_new(client, command, name, environment)
        return asyncio.run(_follow(client, job))
    except (OSError, ClientError, RuntimeError) as error:  # RuntimeError: a restarted head does not know the job
        terminal.note(f"exit status {os.EX_TEMPFAIL}: the cluster was lost: {error}")
        return os.EX_TEMPFAIL


def _read(file: Path) -> Any:
    try:
        return yaml.safe_load(file.read_text())
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise SpecError(" ".join(str(error).split()), where="--runtime-env", hint="Give a YAML file.") from None


def _running_or_new(client: JobSubmissionClient, command: Sequence[str], name: str, environment: Any) -> str:
    mine = {"job_name": name} if name else {}
    try:
        for job in client.list_jobs():
            if mine and job.metadata == mine and not job.status.is_terminal():
                return job.submission_id
        return client.submit_job(entrypoint=shlex.join(command), metadata=mine, runtime_env=environment)
    except (RuntimeError, ValueError) as error:
        reason = str(error).strip().splitlines()[-1]
        raise ClusterError(f"the cluster rejects the job: {reason}", where="--runtime-env") from None


async def _follow(client: JobSubmissionClient, job: str) -> int:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: loop.run_in_executor(None, client.stop_job, job))
    while not client.get_job_status(job).is_terminal():
        async for lines in client.tail_job_logs(job):
            print(lines, end="", flush=True)
        await asyncio.sleep(0.5)
    info = client.get_job_info(job)
    status = os.EX_TEMPFAIL if info.status == JobStatus.STOPPED else info.driver_exit_code
    terminal.note(f"job {job}: {info.status}, {status if status is not None else info.message}")
    return 1 if status is None else 128 - status if status < 0 else status


def _client(address: str | None, wait_s: float) -> JobSubmissionClient:
    """Return a connected client; retry for ``wait_s`` seconds if the cluster cannot be reached, not if it refuses."""
    until = time.monotonic() + wait_s
    named = os.environ.get("RAY_API_SERVER_ADDRESS") or os.environ.get("RAY_ADDRESS") or address or ""
    noted = False
    while True:
        try:
            if "://" not in named:
                check_can_join(named or "auto", "RAY_ADDRESS")
            else:  # Ray's client would wait forever
                requests.get(f"{named.rstrip('/')}/api/version", timeout=_ANSWER_S)
            return JobSubmissionClient(address)
        except (OSError, ClusterError) as error:
            if time.monotonic() >= until:
                raise _unreachable(named, error) from None
        except (RayError, RuntimeError, ValueError) as error:
            reason = str(error).strip().splitlines()[0]
            raise ClusterError(
                f"{named} refuses the connection: {reason}",
                where="RAY_ADDRESS",
                hint="Give the dashboard of a Ray cluster, http://HEAD:8265; if it requires a token, export "
                "RAY_AUTH_MODE=token and RAY_AUTH_TOKEN or RAY_AUTH_TOKEN_PATH.",
            ) from None
        if not noted:
            terminal.note(f"waiting up to {wait_s:g} s for the cluster at {named or 'this machine'}")
            noted = True
        time.sleep(_PAUSE_S)


def _unreachable(named: str, error: Exception) -> ClusterError:
    if isinstance(error, ClusterError):
        return error
    reason = str(error).rpartition(": ")[2].strip("\"')")
    return ClusterError(
        f"the dashboard at {named} does not answer: {reason}",
        where="RAY_ADDRESS",
        hint="Start the cluster, or give its dashboard: --address http://HEAD:8265, or RAY_ADDRESS.",
    )
