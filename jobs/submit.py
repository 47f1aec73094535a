"""As `ray job submit`, for a scheduler: ends with the exit status of the job's own command, where Ray's ends with 1.

    python jobs/submit.py [--name NAME] [--runtime-env jobs/runtime_env.yaml] -- python jobs/sweep.py -e spec.yaml ...

SIGTERM is passed on: the job saves, and this ends with 75; so it does where the cluster does not answer.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import shlex
import signal
import sys
from pathlib import Path

import yaml
from aiohttp import ClientError
from ray.job_submission import JobStatus, JobSubmissionClient


async def follow(client: JobSubmissionClient, job: str) -> int:
    """Print the job's output until it has ended; its exit status."""
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, lambda: loop.run_in_executor(None, client.stop_job, job))
    while not client.get_job_status(job).is_terminal():
        async for lines in client.tail_job_logs(job):
            print(lines, end="", flush=True)
        await asyncio.sleep(0.5)
    info = client.get_job_info(job)
    status = os.EX_TEMPFAIL if info.status == JobStatus.STOPPED else info.driver_exit_code
    print(f"job {job}: {info.status}, {status if status is not None else info.message}", file=sys.stderr)
    return 1 if status is None else 128 - status if status < 0 else status


def main(arguments: list[str]) -> int:
    """Submit, follow; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", help="of the dashboard; default: RAY_ADDRESS")
    parser.add_argument("--name", default="", help="where a job of that name runs, that one is followed")
    parser.add_argument("--runtime-env", type=Path, help="a YAML file; default: what is on the cluster")
    parser.add_argument("command", nargs="+", help="after --")
    asked = parser.parse_args(arguments)
    environment = yaml.safe_load(asked.runtime_env.read_text()) if asked.runtime_env else None
    mine = {"job_name": asked.name} if asked.name else {}
    try:
        client = JobSubmissionClient(asked.address)
        running = [job for job in client.list_jobs() if mine and job.metadata == mine and not job.status.is_terminal()]
        work = {"entrypoint": shlex.join(asked.command), "metadata": mine, "runtime_env": environment}
        return asyncio.run(follow(client, running[0].submission_id if running else client.submit_job(**work)))
    except (OSError, ClientError) as error:
        print(f"the cluster does not answer: {error}", file=sys.stderr)
        return os.EX_TEMPFAIL


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
