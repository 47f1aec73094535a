"""As `ray job submit`, for a scheduler: ends with the exit status of the job's own command, where Ray's ends with 1.

    python jobs/submit.py [--name NAME] [--runtime-env jobs/runtime_env.yaml] -- python jobs/sweep.py -e spec.yaml ...

SIGTERM is passed on: the job saves, and this ends with 75; so it does where the cluster is lost while the job runs. A
cluster that never answered within `--wait` seconds, or refuses the token, is an error with status 1.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from radioplat.cli import main as cli


def main(arguments: list[str]) -> int:
    """Submit, follow; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--address", help="of the dashboard; RAY_ADDRESS goes before it")
    parser.add_argument("--name", default="", help="where a job of that name runs, that one is followed")
    parser.add_argument("--runtime-env", type=Path, help="a YAML file; default: what is on the cluster")
    parser.add_argument("--wait", type=float, default=0.0, help="seconds for the cluster to answer; default 0")
    parser.add_argument("command", nargs="+", help="after --")
    asked = parser.parse_args(arguments)
    ended: list[int] = []

    def run() -> None:
        from radioplat.cluster.submission import submit

        ended.append(submit(asked.command, asked.address, asked.name, asked.runtime_env, asked.wait))

    return cli.guarded(run) or ended[0]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
