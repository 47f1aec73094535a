"""Compress a student: what `ray job submit -- python jobs/compress.py -e spec.yaml key=value` runs.

The stages are `compress.stages`; the same job, submitted again, goes on where it was.
"""

from __future__ import annotations

import sys

from radioplat.cli import main as cli


def main(arguments: list[str]) -> int:
    """As `radioplat compress`; returns the exit status."""
    return cli.main(["compress", *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
