"""Distil a student as a Ray job: `ray job submit -- python jobs/radio_distill.py -e spec.yaml key=value`.

Without -e it runs specs/quickstart.yaml. For that spec and specs/radio_vit.yaml it creates data, weights and the
student's start first if they are missing.
"""

from __future__ import annotations

import sys

from radioplat.cli import main as cli
from radioplat.quickstart import defaults


def main(arguments: list[str]) -> int:
    """Run `radioplat distill`; return the exit status."""
    path, overrides = defaults.split(arguments)
    makes = defaults.has_own_inputs(path) and not {"-h", "--help"} & {*overrides}
    status = cli.guarded(lambda: defaults.ensure_inputs(overrides, path)) if makes else 0
    return status or cli.main(["distill", "-e", path, *overrides])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
