"""The script of `radioplat completion` in bash, and that an answer imports nothing heavy."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys

import pytest

from radioplat.cli.completion import SHELLS
from radioplat.cli.main import main

# Completes lines as bash does at a TAB: the function that the script binds to the command fills COMPREPLY.
BASH = """
source "$1"; shift
function_of=$(complete -p radioplat | sed 's/.*-F \\([^ ]*\\).*/\\1/')
for COMP_LINE in "$@"; do
    COMP_POINT=${#COMP_LINE} COMP_TYPE=9 COMPREPLY=()
    "$function_of" radioplat
    (IFS=' '; echo "${COMPREPLY[*]}")
done
"""
LINES = {
    "radioplat dis": {"distill"},
    "radioplat plan low": {"low_rank"},
    "radioplat plan evaluate --ex": {"--experiment_spec_file"},
    "radioplat weights f": {"fetch"},
    "radioplat plan -e s": {"spec.yaml", "shards/"},
    "radioplat completion b": {"bash"},
    "radioplat evaluate -e spec.yaml train.cudnn.b": {"train.cudnn.benchmark="},
    "radioplat plan -e spec.yaml distill.teacher[0].summary_token": {"distill.teacher\\[0\\].summary_token_idx="},
    "radioplat distill -e spec.yaml train.precision=b": {"bf16"},
    "radioplat distill -e spec.yaml train.enable_ema=t": {"true"},
    "radioplat explain train.optim.warm": {"train.optim.warmup_epochs"},
}


@pytest.fixture
def here(tmp_path, monkeypatch):
    """A folder with a spec, and a command `radioplat`."""
    (tmp_path / "spec.yaml").write_text("")
    (tmp_path / "sketch.txt").write_text("")
    (tmp_path / "shards").mkdir()
    (tmp_path / "bin").mkdir()
    program = tmp_path / "bin" / "radioplat"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m radioplat.cli "$@"\n')
    program.chmod(0o755)
    monkeypatch.setenv("PATH", f"{tmp_path / 'bin'}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join(path for path in sys.path if path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.skipif(shutil.which("bash") is None, reason="there is no bash")
def test_the_script_completes_in_bash(here, capsys):
    assert main(["completion", "bash"]) == 0
    (here / "completion").write_text(capsys.readouterr().out)
    done = subprocess.run(
        ["bash", "-c", BASH, "bash", "completion", *LINES], capture_output=True, text=True, timeout=100, check=True
    )
    shown = [set(line.split()) for line in done.stdout.splitlines()]
    assert dict(zip(LINES, shown, strict=True)) == LINES, done.stderr


@pytest.mark.parametrize("line", ["radioplat ", "radioplat distill -e spec.yaml train.", "radioplat explain d"])
def test_an_answer_imports_nothing_heavy(here, line):
    asks = {"_ARGCOMPLETE": "1", "COMP_LINE": line, "COMP_POINT": str(len(line)), "_ARGCOMPLETE_STDOUT_FILENAME": "out"}
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "radioplat.cli"], env={**os.environ, **asks}, capture_output=True,
        text=True, timeout=100,
    )  # fmt: skip
    imported = {row.rpartition("|")[2].strip().partition(".")[0] for row in done.stderr.splitlines()}
    assert "argcomplete" in imported and not imported & {"torch", "ray", "pyarrow", "numpy", "timm", "rich"}
    assert (here / "out").stat().st_size > 100 or line.endswith("radioplat ")


def test_every_shell_has_a_script(capsys):
    for shell in SHELLS:
        assert main(["completion", shell]) == 0
        assert "radioplat" in capsys.readouterr().out
    with pytest.raises(SystemExit):
        main(["completion", "bsh"])
    assert "'bash'" in capsys.readouterr().err
