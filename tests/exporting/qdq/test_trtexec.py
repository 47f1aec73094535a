"""Which flags a version of TensorRT gets."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from radioplat.errors import EngineError
from radioplat.exporting.deploy.trtexec import arguments, script

SHAPES = {"images": [[1, 3, 8, 8], [2, 3, 8, 8], [4, 3, 8, 8]]}


def flags(version, data_type="fp32", formats=(), stored=True, cache=None) -> list[str]:
    given = arguments(
        Path("a/m.onnx"),
        "m.engine",
        SHAPES,
        version=version,
        data_type=data_type,
        formats=formats,
        stored_weights=stored,
        cache=cache,
    )
    assert given[:3] == ["--onnx=m.onnx", "--saveEngine=m.engine", "--sparsity=enable"]
    assert "--maxShapes=images:4x3x8x8" in given
    return given[6:]


@pytest.mark.parametrize(
    ("wanted", "asked"),
    [
        (["--stronglyTyped"], {"version": None, "formats": ["int8"]}),
        (["--stronglyTyped"], {"version": "10.3", "data_type": "fp16", "formats": ["int8"]}),
        (["--stronglyTyped"], {"version": "9.2", "data_type": "bf16"}),
        (["--int8", "--fp16"], {"version": "8.6.1", "data_type": "fp16", "formats": ["int8"], "stored": False}),
        (["--fp16"], {"version": "8.6.1", "data_type": "fp16"}),
        ([], {"version": "8.6.1"}),
        (["--int8", "--calib=c.cache"], {"version": "10.3", "formats": ["int8"], "cache": "c.cache"}),
        (["--int8", "--fp16", "--calib=c.cache"], {"version": "10.3", "data_type": "fp16", "cache": "c.cache"}),
        (["--int8", "--bf16", "--calib=c.cache"], {"version": "10.3", "data_type": "bf16", "cache": "c.cache"}),
        (["--int8", "--calib=c.cache"], {"version": "8.6.1", "data_type": "bf16", "cache": "c.cache"}),
    ],
)
def test_flags(wanted, asked):
    assert flags(**asked) == wanted


@pytest.mark.parametrize(
    ("says", "asked"),
    [
        ("has no fp8. Use 9 or newer", {"version": "8.6", "formats": ["fp8"]}),
        ("has no int4. Use 10 or newer", {"version": "9.0", "formats": ["int4", "int8"]}),
        ("has no bf16", {"version": "8.6", "data_type": "bf16"}),
        ("reads no quantized weights. Set it to false", {"version": "8.6", "formats": ["int8"]}),
    ],
)
def test_what_a_version_does_not_know_is_refused(says, asked):
    with pytest.raises(EngineError, match=says):
        flags(**asked)


def test_the_script_is_sound_shell_and_keeps_odd_names_whole(tmp_path):
    path = tmp_path / "build.sh"
    path.write_text(script(["--onnx=my student's.onnx", "--saveEngine=$HOME.engine"], "10.3"))
    assert subprocess.run(["bash", "-n", path], capture_output=True).returncode == 0
    done = subprocess.run(["bash", path, "-x"], env={"TRTEXEC": "echo", "PATH": "/usr/bin:/bin"}, capture_output=True)
    assert done.stdout.decode() == "--onnx=my student's.onnx --saveEngine=$HOME.engine -x\n"
