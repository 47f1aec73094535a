"""Run a pipeline as a Ray job: `ray job submit -- python jobs/pipeline.py -e dag.yaml key=value`.

Its nodes run side by side as far as they fit on the cluster; the same job, submitted again, resumes.
"""

from __future__ import annotations

import sys

from radioplat.cli import main as cli


def main(arguments: list[str]) -> int:
    """Run `radioplat pipeline`; return the exit status."""
    return cli.main(["pipeline", *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
