"""Distil a student as a Ray job: `ray job submit -- python jobs/radio_distill.py -e spec.yaml key=value`.

Without -e it runs specs/quickstart.yaml. For that spec and specs/radio_vit.yaml it creates data, weights and the
student's start first if they are missing.
"""

from __future__ import annotations

import argparse
import sys

from radioplat.cli import main as cli
from radioplat.quickstart import defaults


def main(arguments: list[str]) -> int:
    """Run `radioplat distill`; return the exit status."""
    parser = argparse.ArgumentParser(add_help=False, allow_abbrev=False)
    parser.add_argument("-e", "--experiment_spec", default=str(defaults.SPEC))
    given, overrides = parser.parse_known_args(arguments)
    if {"-h", "--help"} & {*arguments}:
        return cli.main(["distill", *arguments])
    if defaults.has_own_inputs(given.experiment_spec):
        status = cli.guarded(lambda: defaults.ensure_inputs(overrides, given.experiment_spec))
        if status:
            return status
    return cli.main(["distill", "-e", given.experiment_spec, *overrides])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
