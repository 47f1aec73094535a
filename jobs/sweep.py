"""Try many values of a spec: what `ray job submit -- python jobs/sweep.py -e spec.yaml --space SPACE key=value` runs.

SPACE is a search space file (tune_spaces/ has some); the same job, submitted again, goes on where it was.
"""

from __future__ import annotations

import sys

from radioplat.cli import main as cli


def main(arguments: list[str]) -> int:
    """As `radioplat tune`; returns the exit status."""
    return cli.main(["tune", *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
