"""Tune a spec as a Ray job: `ray job submit -- python jobs/sweep.py -e spec.yaml --space SPACE key=value`.

SPACE is a search space file (tune_spaces/ has some); the same job, submitted again, resumes.
"""

from __future__ import annotations

import sys

from radioplat.cli import main as cli


def main(arguments: list[str]) -> int:
    """Run `radioplat tune`; return the exit status."""
    return cli.main(["tune", *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
