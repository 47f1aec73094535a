"""What ends a command, as an exit status and a message: 1 is what the user can mend, 70 a defect of ours."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from radioplat.cli import defect
from radioplat.cli import main as cli

ROOT = Path(__file__).parents[2]
KEPT = re.compile(r"The traceback is in (\S+\.log)")


@pytest.fixture
def temporary(tmp_path, monkeypatch) -> Path:
    """The folder for temporary files."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    return tmp_path


def test_an_unexpected_exception_is_a_defect(temporary, capfd, monkeypatch):
    monkeypatch.setenv("STORE_TOKEN", "a-secret-of-mine")
    monkeypatch.delenv(defect.SHOW, raising=False)

    def action() -> None:
        raise KeyError("a-secret-of-mine")

    assert cli.guarded(action) == os.EX_SOFTWARE == 70
    err = capfd.readouterr().err
    assert "unexpected KeyError" in err and "defect of radioplat" in err and "report" in err
    assert "Traceback" not in err and "a-secret-of-mine" not in err and len(err.splitlines()) == 1
    file = Path(KEPT.search(err)[1])
    assert file.parent == temporary and file.stat().st_mode & 0o777 == 0o600
    text = file.read_text()
    assert "Traceback" in text and "in action" in text and "a-secret-of-mine" not in text


def test_on_request_and_where_no_file_can_be_written_the_traceback_is_shown(temporary, capfd, monkeypatch):
    def action() -> None:
        raise ZeroDivisionError

    monkeypatch.setenv(defect.SHOW, "1")
    assert cli.guarded(action) == 70
    assert "Traceback" in capfd.readouterr().err
    monkeypatch.delenv(defect.SHOW)
    with monkeypatch.context() as away:
        away.setattr("tempfile.tempdir", str(temporary / "nothing_here"))
        assert cli.guarded(action) == 70
    err = capfd.readouterr().err
    assert "in action" in err and "The traceback is above" in err


def test_what_the_machine_refuses_is_no_defect(tmp_path, capfd):
    (tmp_path / "file").touch()
    for path in (tmp_path / "file" / "inside", tmp_path / ("x" * 300), tmp_path):
        assert cli.guarded(lambda path=path: open(path, "w")) == 1
        assert str(path) in capfd.readouterr().err.replace("\n", "")

    def too_much() -> None:
        bytearray(1 << 62)

    def too_much_for_a_gpu() -> None:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.")

    def too_much_for_cublas() -> None:
        raise RuntimeError("CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling `cublasCreate(handle)`")

    for action in (too_much, too_much_for_a_gpu, too_much_for_cublas):
        assert cli.guarded(action) == 1
        err = capfd.readouterr().err
        assert "out of memory" in err and "batch sizes" in err and "defect" not in err


@pytest.mark.parametrize("program", [["-m", "radioplat.cli"], [str(ROOT / "jobs" / "compress.py")]])
def test_a_process_ends_so(tmp_path, program):
    """A library of the installation is broken."""
    (tmp_path / "yaml.py").write_text("raise RuntimeError('broken on purpose')\n")
    (tmp_path / "spec.yaml").write_text("results_dir: /nowhere\n")
    environment = os.environ | {"PYTHONPATH": f"{tmp_path}:{ROOT}", "TMPDIR": str(tmp_path)}
    task = ["export"] if "-m" in program else []  # of all tasks the one that reads the spec first
    command = [sys.executable, *program, *task, "-e", str(tmp_path / "spec.yaml")]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 70, done.stderr
    assert "unexpected RuntimeError: broken on purpose" in done.stderr and "Traceback" not in done.stderr
    assert "broken on purpose" in Path(KEPT.search(done.stderr)[1]).read_text()


def test_a_wrong_argument_is_two():
    done = subprocess.run([sys.executable, "-m", "radioplat.cli", "nonsense"], capture_output=True, check=False)
    assert done.returncode == 2


def test_a_reader_that_has_enough_is_no_defect():
    """`radioplat default_specs --json-schema | head -1`, whose output is longer than a pipe holds."""
    line = f"{sys.executable} -m radioplat.cli default_specs --json-schema | head -1"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {line}"], capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "{\n", "")
