import json
import math
import subprocess
import sys
import tracemalloc

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from radioplat.tracking.status import StatusLog, read_status


def strict(path):
    """Parse as a reader of standard JSON does: NaN and Infinity are errors."""

    def refuse(word):
        raise AssertionError(f"{word} is not JSON")

    return [json.loads(line, parse_constant=refuse) for line in path.read_text(encoding="utf-8").splitlines()]


def test_lines_have_the_fields_of_the_format(tmp_path):
    path = tmp_path / "distill" / "status.json"
    with StatusLog(path) as log:
        log.write("begins", "STARTED")
        log.progress(
            epoch=1,
            max_epoch=4,
            step=30,
            max_step=80,
            seconds_per_step=2.0,
            steps_per_epoch=20,
            kpi={"loss/clip/summary": 0.5},
        )
        log.write("done", "SUCCESS", kpi={"knn": 0.9})
    first, second, last = strict(path)
    assert list(first) == ["date", "time", "status", "verbosity", "message", "kpi"]
    assert [first["status"], second["status"], last["status"]] == ["STARTED", "RUNNING", "SUCCESS"]
    assert (second["epoch"], second["max_epoch"], second["step"], second["max_step"]) == (1, 4, 30, 80)
    assert (second["time_per_step"], second["time_per_epoch"], second["eta"]) == ("0:00:02", "0:00:40", "0:01:40")
    assert second["kpi"] == {"loss/clip/summary": 0.5}


@settings(max_examples=40, deadline=None)
@given(st.dictionaries(st.text(), st.floats() | st.integers() | st.text() | st.none()))
def test_any_kpi_is_valid_json_and_reads_back(tmp_path_factory, kpi):
    path = tmp_path_factory.mktemp("status") / "status.json"
    with StatusLog(path) as log:
        log.write("x", kpi=kpi)
    (line,) = strict(path)
    assert set(line["kpi"]) == set(kpi)
    for name, value in kpi.items():
        expected = None if isinstance(value, float) and not math.isfinite(value) else value
        assert line["kpi"][name] == expected or name.upper().endswith(("_KEY", "_TOKEN", "_SECRET", "_PASSWORD"))


def test_array_scalars_are_numbers(tmp_path):
    with StatusLog(tmp_path / "s.json") as log:
        log.write("x", kpi={"a": np.float32(0.5), "b": np.array([1, 2]), "c": np.float32("nan")})
    assert strict(tmp_path / "s.json")[0]["kpi"] == {"a": 0.5, "b": [1, 2], "c": None}


def test_unknown_duration_is_null(tmp_path):
    with StatusLog(tmp_path / "s.json") as log:
        log.progress(epoch=0, max_epoch=1, step=0, max_step=5, seconds_per_step=math.nan, steps_per_epoch=5)
    assert strict(tmp_path / "s.json")[0]["eta"] is None


def test_unknown_status_is_refused(tmp_path):
    with StatusLog(tmp_path / "s.json") as log, pytest.raises(ValueError):
        log.write("x", "DONE")


@settings(max_examples=40, deadline=None)
@given(st.integers(min_value=0, max_value=200))
def test_resume_appends_after_a_line_cut_anywhere(tmp_path_factory, cut):
    path = tmp_path_factory.mktemp("status") / "status.json"
    with StatusLog(path) as log:
        log.write("first")
        log.write("second: ü")
    data = path.read_bytes()
    whole = data.index(b"\n") + 1
    path.write_bytes(data[: min(whole + cut, len(data))])
    before = [line["message"] for line in read_status(path)]
    with StatusLog(path) as log:
        log.write("resumed")
    assert [line["message"] for line in strict(path)] == [*before, "resumed"]
    assert before[0] == "first"


@pytest.mark.parametrize("long", [10, 200_000])
def test_a_start_reads_the_end_of_the_file_alone(tmp_path, long):
    path = tmp_path / "s.json"
    with path.open("wb") as file:  # a hundred megabytes of earlier lines, of which most are a hole
        file.truncate(10**8)
        file.seek(10**8)
        file.write(b"\n" + json.dumps({"message": "last"}).encode() + b"\n" + b'{"message": "' + b"x" * long)
    tracemalloc.start()
    with StatusLog(path) as log:
        log.write("resumed")
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 2_000_000
    with path.open("rb") as file:
        file.seek(10**8 + 1)
        assert [json.loads(line)["message"] for line in file] == ["last", "resumed"]


def test_lines_of_several_processes_stay_whole(tmp_path):
    """Also long ones, and while others begin."""
    code = (
        "import sys\nfrom radioplat.tracking.status import StatusLog\n"
        "for i in range(40):\n"
        "    with StatusLog(sys.argv[1]) as log:\n"
        "        log.write(sys.argv[2] * 20_000, step=i)\n"
    )
    path = tmp_path / "s.json"
    writers = [subprocess.Popen([sys.executable, "-c", code, path, name]) for name in "abc"]
    assert [writer.wait(60) for writer in writers] == [0, 0, 0]
    found = [(line["message"][0], line["step"]) for line in strict(path)]
    assert sorted(found) == [(name, i) for name in "abc" for i in range(40)]


def test_a_line_after_the_end_is_no_error(tmp_path):
    """A thread may be late."""
    log = StatusLog(tmp_path / "s.json")
    log.close()
    log.write("late")
    log.close()
    assert read_status(tmp_path / "s.json") == []


def test_every_line_is_on_disk_at_once(tmp_path):
    log = StatusLog(tmp_path / "s.json")
    log.write("now")
    assert read_status(tmp_path / "s.json")[0]["message"] == "now"
    log.close()


def test_secret_of_the_environment_is_masked(tmp_path, monkeypatch):
    monkeypatch.setenv("SOME_API_KEY", "0123456789abcdef")
    with StatusLog(tmp_path / "s.json") as log:
        log.write("login with 0123456789abcdef failed", kpi={"x": "0123456789abcdef"}, extra=["0123456789abcdef"])
    assert "0123456789abcdef" not in (tmp_path / "s.json").read_text()


def test_no_file_reads_as_empty(tmp_path):
    assert read_status(tmp_path / "none.json") == []


def test_track_imports_without_heavy_libraries():
    code = (
        "import sys, radioplat.tracking.status, radioplat.tracking.results\n"
        "import radioplat.tracking.weights_and_biases.session\n"
        "import radioplat.tracking.progress, radioplat.tracking.report.curves, radioplat.tracking.report.page\n"
        "heavy = {'torch', 'ray', 'deepspeed', 'wandb', 'matplotlib', 'jinja2', 'numpy'}\n"
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"
