"""Export a student and build its engine, as a Ray job: `ray job submit -- python jobs/build_engine.py -e spec.yaml`.

If gen_trt_engine.onnx_file is set, the engine is built from that file; else the student is exported first. The engine
is built on the machine of the job's driver: submit with `--entrypoint-num-gpus 1` to build on the cluster's GPUs.
"""

from __future__ import annotations

import sys

from radioplat.cli import main as cli
from radioplat.spec.loading.load import load_spec


def main(arguments: list[str]) -> int:
    """Run `radioplat export` and `radioplat gen_trt_engine`; return the exit status."""
    names_file = []

    def read_spec() -> None:
        at = next((i for i, word in enumerate(arguments) if word in ("-e", "--experiment_spec")), None)
        if at is not None and at + 1 < len(arguments):
            overrides = [word for word in arguments[at + 2 :] if "=" in word]
            names_file.append(load_spec(arguments[at + 1], overrides).gen_trt_engine.onnx_file is not None)

    if status := cli.guarded(read_spec):
        return status
    if names_file != [True] and (status := cli.main(["export", *arguments])):
        return status
    return cli.main(["gen_trt_engine", *arguments])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
