"""Does the newest TensorRT have every name that our code calls? Reads NVIDIA's bindings, which need no GPU to be read.

``python -m benchmarks.judges.tensorrt_names [WHEEL]``: without ``WHEEL`` pip downloads ``tensorrt_cu13_bindings`` from
the registry. Imports nothing of radioplat: it parses the sources of the backends ``tensorrt`` and ``tensorrt_rtx`` and
of the runner of bundles, collects the attributes of objects that come from TensorRT, and looks for each in the strings
of the compiled bindings: as a string of its own, or as the end of another string and named in the documentation that
the bindings contain, since the linker keeps a string inside one that ends with it. Names behind ``getattr`` or
``hasattr`` are optional; those of ``OLDER`` are called with TensorRT 8 to 10 alone, which the code asks for by version.

The last line on stdout is one JSON object: ``version``, ``names`` (all that were looked for), ``missing``, ``older``,
``ends`` (names that are the end of another string and in no documentation: they may be there or not).
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
    *("_engine", "_context", "_runtime", "layer", "tensor", "parser_error"),
}
NOT_THEIRS = {"request"}  # request.config is a section of the spec
# Attributes of argparse, of paths, of sections of the spec and of our classes, in variables of the same names.
OURS = {"add_argument", "parse_args", "is_file", "partition", "run"}
OURS |= {"cal_batch_size", "cal_batches", "cal_cache_file", "cal_image_dir", "cal_json_file"}
OURS |= {"batch", "block", "cpu", "data_ptr", "error", "items", "module", "numpy", "outputs", "shape", "version"}
OLDER = {"IInt8EntropyCalibrator2", "int8_calibrator", "set_calibration_profile", "dynamic_range"}


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
    unknown = [name for name in names if not is_in(strings, name)]
    ends = [name for name in unknown if name.encode() + b"\0" in strings]
    older = [name for name in unknown if name in OLDER and name not in ends]
    missing = [name for name in unknown if name not in (*ends, *older)]
    version = wheel.name.split("-")[1]
    print(json.dumps({"version": version, "names": names, "missing": missing, "older": older, "ends": ends}))
    sys.exit(bool(missing))


def is_in(strings: bytes, name: str) -> bool:
    """Return whether the bindings have a name: as a string of its own, or as an end that their documentation names."""
    word = name.encode()
    if b"\0" + word + b"\0" in strings:
        return True
    named = re.search(rb"(?::ivar |`|\.)" + re.escape(word) + rb"\b", strings)
    return named is not None and word + b"\0" in strings


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
