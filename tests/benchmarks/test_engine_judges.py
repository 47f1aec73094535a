"""The judges of what is written for TensorRT and Triton, and what they said when they were last run."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from benchmarks.judges.tensorrt_names import OLDER, OURS, SOURCES, names_of
from radioplat.exporting.deploy import triton

ROOT = Path(__file__).parents[2]
RECEIPTS = ROOT / "docs" / "receipts"


def judge(name: str, *arguments: object) -> tuple[int, dict | list]:
    command = [sys.executable, "-m", f"benchmarks.judges.{name}", *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=ROOT, timeout=300)
    assert done.stdout, done.stderr
    return done.returncode, json.loads(done.stdout.splitlines()[-1])


def wheel(folder: Path, names: list[str]) -> Path:
    path = folder / "tensorrt_cu13_bindings-99.1-py3.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("tensorrt_bindings/tensorrt.so", b"".join(name.encode() + b"\0" for name in names))
    return path


def test_a_name_that_tensorrt_does_not_have_is_missing(tmp_path):
    names = sorted(set().union(*map(names_of, SOURCES)) - OURS)
    assert {"can_run_on_DLA", "execute_async_v3", "parse_from_file", "set_memory_pool_limit"} <= set(names)
    status, said = judge("tensorrt_names", wheel(tmp_path, [name for name in names if name not in OLDER]))
    assert status == 0 and said == {
        "version": "99.1",
        "names": len(names),
        "missing": [],
        "older": sorted(OLDER & set(names)),
    }
    status, said = judge("tensorrt_names", wheel(tmp_path, [name for name in names if name != "can_run_on_DLA"]))
    assert status == 1 and said["missing"] == ["can_run_on_DLA"]


def config(folder: Path) -> Path:
    shapes = {"images": ["batch", 3, 48, 64]}, {"summary": ["batch", 12], "spatial": ["batch", 3, 4, 12]}
    (folder / "config.pbtxt").write_text(triton.config("vit", *shapes, (48, 64), 4))
    return folder / "config.pbtxt"


@pytest.mark.proof
def test_the_newest_tensorrt_has_every_name_that_we_call():
    """It downloads NVIDIA's bindings."""
    status, said = judge("tensorrt_names")
    assert (status, said["missing"]) == (0, []) and said["names"] > 40


@pytest.mark.proof
def test_tritons_own_schema_reads_the_configuration(tmp_path):
    """It downloads Triton's client."""
    assert judge("triton_config", config(tmp_path)) == (0, PARSED)


PARSED = [
    {
        "name": "vit",
        "max_batch_size": 4,
        "inputs": {"images": [3, 48, 64]},
        "outputs": {"summary": [12], "spatial": [3, 4, 12]},
    }
]


def test_what_they_said_last_is_of_the_names_that_are_called_now(tmp_path):
    receipt = json.loads((RECEIPTS / "engine_judges.json").read_text(encoding="utf-8"))
    names, schema = receipt["tensorrt_names"], receipt["triton_config"]
    assert names["missing"] == [] and names["names"] == len(set().union(*map(names_of, SOURCES)) - OURS)
    assert schema["parsed"] == PARSED and schema["file"] == config(tmp_path).read_text()
