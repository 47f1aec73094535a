"""Distil a student as a Ray job: `ray job submit -- python jobs/radio_distill.py -e spec.yaml key=value`.

Without -e it runs specs/quickstart.yaml. For that spec and specs/radio_vit.yaml it creates data, weights and the
student's start first if they are missing.
"""

from __future__ import annotations

import sys

from radioplat.cli.main import guarded
from radioplat.cli.parser import build_parser
from radioplat.cli.tao_options import with_tao_options
from radioplat.quickstart import defaults


def main(arguments: list[str]) -> int:
    """Run `radioplat distill`; return the exit status."""
    if not any(argument.startswith(("-e", "--experiment_spec", "-h", "--help")) for argument in arguments):
        arguments = ["-e", str(defaults.SPEC), *arguments]
    args = build_parser("radioplat").parse_args(["distill", *arguments])

    def run() -> None:
        """Make the inputs of our own specs, then distil."""
        given = with_tao_options(args)
        if defaults.has_own_inputs(given.spec):
            defaults.ensure_inputs(given.overrides, given.spec)
        given.run(given)

    return guarded(run)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
