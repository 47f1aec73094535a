"""Does the newest TensorRT have every name that our code calls? Reads NVIDIA's bindings, which need no GPU to be read.

``python -m benchmarks.judges.tensorrt_names [WHEEL]``: without ``WHEEL`` pip downloads ``tensorrt_cu13_bindings`` from
the registry. Imports nothing of radioplat: it parses the sources of the backends ``tensorrt`` and ``tensorrt_rtx`` and
of the runner of bundles, collects the attributes of objects that come from TensorRT, and looks for each in the strings
of the compiled bindings. Names behind ``getattr`` or ``hasattr`` are optional; those of ``OLDER`` are called with
TensorRT 8 to 10 alone, which the code asks for by version.

The last line on stdout is one JSON object: ``version``, ``names`` (how many were looked for), ``missing``, ``older``.
"""

from __future__ import annotations

import argparse
import ast
import json
import re
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

PACKAGE = "tensorrt_cu13_bindings"
FOLDER = Path(__file__).parents[2] / "radioplat/exporting"
SOURCES = (
    *(
        FOLDER / "engines/backends" / f"{name}.py"
        for name in ("network", "tensorrt", "tensorrt_session", "calibration")
    ),
    FOLDER / "engines/library.py",
    FOLDER / "deploy/infer_tensorrt.py",
)
# Variables and attributes that hold the module or an object of TensorRT's.
OBJECTS = {
    *("trt", "tensorrt", "builder", "network", "parser", "config", "profile", "engine", "context", "runtime"),
    *("_engine", "_context", "_runtime"),
}
NOT_THEIRS = {"request"}  # request.config is a section of the spec
# Attributes of argparse, of paths, of sections of the spec and of our classes, in variables of the same names.
OURS = {"add_argument", "parse_args", "is_file", "partition", "run"}
OURS |= {"cal_batch_size", "cal_batches", "cal_cache_file", "cal_image_dir", "cal_json_file"}
OLDER = {"IInt8EntropyCalibrator2", "int8_calibrator", "set_calibration_profile"}


def main() -> None:
    """Compare and print; exit with 1 if a name is missing."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("wheel", type=Path, nargs="?")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        wheel = given.wheel or downloaded(Path(scratch))
        with zipfile.ZipFile(wheel) as archive:
            library = next(name for name in archive.namelist() if name.endswith(".so"))
            strings = archive.read(library)
    names = sorted(set().union(*map(names_of, SOURCES)) - OURS)
    # The linker keeps a string that another one ends with inside that one, so only the end is looked for.
    missing = [name for name in names if name.encode() + b"\0" not in strings]
    older = [name for name in missing if name in OLDER]
    missing = [name for name in missing if name not in OLDER]
    version = wheel.name.split("-")[1]
    print(json.dumps({"version": version, "names": len(names), "missing": missing, "older": older}))
    sys.exit(bool(missing))


def downloaded(folder: Path) -> Path:
    """Download the newest bindings; return the wheel."""
    command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--dest", str(folder), PACKAGE]
    subprocess.run(command, check=True, stdout=sys.stderr)
    return next(folder.glob("*.whl"))


def names_of(path: Path) -> set[str]:
    """Return the attributes of TensorRT's objects that a source file reads without asking whether they exist."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute) and not node.attr.startswith("__"):
            words = re.findall(r"[A-Za-z_]\w*", ast.unparse(node.value))
            if words and not NOT_THEIRS & set(words) and is_theirs(node.value):
                found.add(node.attr)
    return found


def is_theirs(value: ast.expr) -> bool:
    """Return whether an expression is an object of TensorRT's: one of those variables, or an attribute of one."""
    if isinstance(value, ast.Name):
        return value.id in OBJECTS
    if isinstance(value, ast.Attribute):
        return value.attr in OBJECTS or is_theirs(value.value)
    return isinstance(value, ast.Call) and is_theirs(value.func)


if __name__ == "__main__":
    main()
