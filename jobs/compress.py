"""Compress a student as a Ray job: `ray job submit -- python jobs/compress.py -e spec.yaml key=value`.

The stages are `compress.stages`; the same job, submitted again, resumes.
"""

from __future__ import annotations

import sys

from radioplat.cli import main as cli


def main(arguments: list[str]) -> int:
    """Run `radioplat compress`; return the exit status."""
    return cli.main(["compress", *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
