"""Runs the tests marked ``proof``, each file in a process of its own, and prints one line for each test.

It goes on after a failure and exits with 1 if any test failed. The whole output of a file is in ``proofs/`` under the
current folder. ``--list`` prints the names instead. Files may be named; all are run by default.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from collections import defaultdict
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
FINE = (pytest.ExitCode.OK, pytest.ExitCode.NO_TESTS_COLLECTED)


class Lines:
    """A pytest plugin that writes a line for each finished test to a file descriptor."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor
        self._reports: dict[str, list[pytest.TestReport]] = defaultdict(list)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """Write the line once the test is torn down."""
        self._reports[report.nodeid].append(report)
        if report.when == "teardown":
            reports = self._reports.pop(report.nodeid)
            outcome = next(
                (name for name in ("failed", "skipped") if any(r.outcome == name for r in reports)), "passed"
            )
            line = f"{outcome:8} {sum(r.duration for r in reports):7.1f} s  {report.nodeid}\n"
            os.write(self._descriptor, line.encode())


def proof_files() -> list[str]:
    """Files with a test that is marked ``proof``, relative to the repository."""
    paths = sorted((ROOT / "tests").rglob("test_*.py"))
    return [path.relative_to(ROOT).as_posix() for path in paths if "mark.proof" in path.read_text(encoding="utf-8")]


def run_file(file: str, logs: Path) -> bool:
    """Run the proofs of one file; returns whether all passed."""
    log, begin = logs / f"{file.removeprefix('tests/').replace('/', '.')}.log", time.monotonic()
    lines = os.dup(sys.stdout.fileno())
    with log.open("w") as output:
        command = [sys.executable, __file__, file, "--descriptor", str(lines)]
        ended = subprocess.run(command, cwd=ROOT, stdout=output, stderr=output, pass_fds=[lines])
    os.close(lines)
    if ended.returncode in FINE:
        return True
    if ended.returncode != pytest.ExitCode.TESTS_FAILED:
        print(f"failed   {time.monotonic() - begin:7.1f} s  {file}: exit status {ended.returncode}", flush=True)
    print(f"         see {log}", flush=True)
    return False


def main() -> int:
    """Run or list them; returns the exit status."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("files", nargs="*", help="files of tests; default: all that have proofs")
    parser.add_argument("--list", action="store_true", help="print the names and run nothing")
    parser.add_argument("--logs", type=Path, default=Path("proofs"), help="folder of the logs")
    parser.add_argument("--descriptor", type=int, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    files = arguments.files or proof_files()
    sys.path[0] = str(ROOT)  # as `python -m pytest` does: tests import benchmarks/ and clusters/
    if arguments.list:
        return pytest.main(["--collect-only", "-q", "-m", "proof", *files])
    if arguments.descriptor:
        return pytest.main(["-m", "proof", *files], plugins=[Lines(arguments.descriptor)])
    arguments.logs.mkdir(parents=True, exist_ok=True)
    begin, failed = time.monotonic(), [file for file in files if not run_file(file, arguments.logs)]
    print(f"{len(files) - len(failed)} of {len(files)} files passed in {(time.monotonic() - begin) / 60:.1f} min")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
