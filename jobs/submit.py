"""Submit a Ray job and exit with the status of its command, for schedulers; `ray job submit` would exit with 1.

    python jobs/submit.py [--name NAME] [--runtime-env jobs/runtime_env.yaml] -- python jobs/sweep.py -e spec.yaml ...

SIGTERM is forwarded: the job saves, and the exit status is 75; also if the cluster is lost while the job runs. It is 1
if the cluster does not answer within `--wait` seconds, or rejects the token.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from radioplat.cli import main as cli


def main(arguments: list[str]) -> int:
    """Submit a job and follow it to its end; return the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", help="of the dashboard; RAY_ADDRESS takes precedence")
    parser.add_argument("--name", default="", help="if a job of this name runs already, follow that one")
    parser.add_argument("--runtime-env", type=Path, help="a YAML file; default: the environment of the cluster")
    parser.add_argument("--wait", type=float, default=0.0, help="seconds for the cluster to answer; default 0")
    parser.add_argument("command", nargs="+", help="after --")
    args = parser.parse_args(arguments)
    status: list[int] = []

    def run() -> None:
        from radioplat.cluster.submission import submit

        status.append(submit(args.command, args.address, args.name, args.runtime_env, args.wait))

    return cli.guarded(run) or status[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
