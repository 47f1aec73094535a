"""Export a student and build its engine: what `ray job submit -- python jobs/build_engine.py -e spec.yaml` runs.

Where gen_trt_engine.onnx_file names a file, that is built; else the student is exported first. The machine that the
job's driver is on builds: submit with `--entrypoint-num-gpus 1` for an engine of the cluster's own GPUs.
"""

from __future__ import annotations

import sys

from radioplat.cli import main as cli
from radioplat.spec.loading.load import load_spec


def main(arguments: list[str]) -> int:
    """As `radioplat export` and `radioplat gen_trt_engine`; returns the exit status."""
    names_file = []

    def look() -> None:
        at = next((i for i, word in enumerate(arguments) if word in ("-e", "--experiment_spec")), None)
        if at is not None and at + 1 < len(arguments):
            overrides = [word for word in arguments[at + 2 :] if "=" in word]
            names_file.append(load_spec(arguments[at + 1], overrides).gen_trt_engine.onnx_file is not None)

    if status := cli.guarded(look):
        return status
    if names_file != [True] and (status := cli.main(["export", *arguments])):
        return status
    return cli.main(["gen_trt_engine", *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
