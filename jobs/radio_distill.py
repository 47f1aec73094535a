"""Distil a student as a Ray job: `ray job submit -- python jobs/radio_distill.py -e spec.yaml key=value`.

Without -e it runs specs/quickstart.yaml, and creates that spec's data and weights first if they are missing.
"""

from __future__ import annotations

import sys

from radioplat.cli import main as cli
from radioplat.quickstart import defaults


def main(arguments: list[str]) -> int:
    """Run `radioplat distill`; return the exit status."""
    if not any(argument.startswith(("-e", "--experiment_spec", "-h", "--help")) for argument in arguments):
        status = cli.guarded(lambda: defaults.ensure_inputs(arguments))
        if status:
            return status
        arguments = ["-e", str(defaults.SPEC), *arguments]
    return cli.main(["distill", *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
