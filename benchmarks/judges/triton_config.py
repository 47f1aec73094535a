"""Is a bundle's Triton configuration one that Triton's own schema takes?

``python -m benchmarks.judges.triton_config CONFIG.pbtxt... [--wheel WHEEL]``: without ``--wheel`` pip downloads
``tritonclient`` from the registry, whose ``ModelConfig`` message parses the files. Imports nothing of radioplat.

The last line on stdout is one JSON object: the parsed ``name``, ``max_batch_size``, ``inputs`` and ``outputs`` of each
file.
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

from google.protobuf import text_format

SCHEMA = "tritonclient/grpc/model_config_pb2.py"


def main() -> None:
    """Parse and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", type=Path, nargs="+")
    parser.add_argument("--wheel", type=Path)
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        if given.wheel is None:
            command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder)]
            subprocess.run([*command, "tritonclient"], check=True, stdout=sys.stderr)
        with zipfile.ZipFile(given.wheel or next(folder.glob("*.whl"))) as archive:
            archive.extract(SCHEMA, folder)
        specification = importlib.util.spec_from_file_location("model_config_pb2", folder / SCHEMA)
        assert specification is not None and specification.loader is not None
        schema = importlib.util.module_from_spec(specification)
        specification.loader.exec_module(schema)
        rows = []
        for path in given.files:
            parsed = text_format.Parse(path.read_text(encoding="utf-8"), schema.ModelConfig())
            tensors = [{each.name: list(each.dims) for each in side} for side in (parsed.input, parsed.output)]
            rows.append(
                {
                    "name": parsed.name,
                    "max_batch_size": parsed.max_batch_size,
                    "inputs": tensors[0],
                    "outputs": tensors[1],
                }
            )
    print(json.dumps(rows))


if __name__ == "__main__":
    main()
