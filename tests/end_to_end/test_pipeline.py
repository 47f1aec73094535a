"""A pipeline of tiny students: widths before anything starts, a kill in the middle, a change, a failure, SIGTERM."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
import yaml
from forked import Forked, run_script

import radioplat
from benchmarks.judges.pipeline import judged
from radioplat.cli.main import main
from radioplat.errors import SpecError
from radioplat.tasks.pipeline.checks import plan_pipeline
from radioplat.tasks.pipeline.record import Record, State

pytestmark = pytest.mark.timeout(400)
ROOT = Path(__file__).parents[2]
TAUGHT = "distill.teacher=[{name: proxy, mode: combo, pretrained_teacher_model_path: '${nodes.proxy.student}'}]"
STARTED = "train.pretrained_model_path=${nodes.proxy.student}"


@pytest.fixture(scope="module")
def spec(make_spec) -> dict:
    """A student of one teacher: eight steps, a checkpoint each second one."""
    spec = make_spec("never")
    del spec["results_dir"], spec["teachers"]
    spec["distill"]["teacher"] = spec["distill"]["teacher"][1:]
    spec["train"] |= {"checkpoint_interval": 2, "checkpoint_interval_unit": "step"}
    spec["cluster"] |= {"cpu_hour_price": 3.6}
    return spec


def dag(home: Path, spec: dict, nodes: dict, **fields) -> Path:
    """The file of a pipeline in ``home``, whose nodes have the spec beside it."""
    home.mkdir(exist_ok=True)
    (home / "spec.yaml").write_text(yaml.safe_dump(spec))
    tree = {"results_dir": str(home / "out"), "spec": "spec.yaml", "nodes": nodes, **fields}
    (home / "dag.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    return home / "dag.yaml"


def test_models_that_do_not_fit_are_refused_before_anything_starts(spec, tmp_path):
    wide = "model.backbone.kwargs.embed_dim=96"
    nodes = {
        "proxy": {},
        "taught": {"changes": [TAUGHT, wide]},  # a teacher may have another width
        "started": {"changes": [STARTED, wide]},
        "sized": {"changes": [TAUGHT, "distill.teacher[0].input_size=30"]},
        "pruned": {"task": "prune", "changes": ["prune.checkpoint=${nodes.proxy.student}"]},
        "file": {"task": "export", "changes": ["export.checkpoint=${nodes.pruned.student}"]},
    }
    path = dag(tmp_path, spec, nodes)
    planned = plan_pipeline(path)
    assert [problem.where for problem in planned.problems] == [
        "nodes.started: train.pretrained_model_path",
        "nodes.sized: distill.teacher[0].input_size",
    ]
    message = planned.problems[0].message
    assert message.startswith("the student of nodes.proxy does not fit the architecture (shapes: blocks.0.norm1.weight")
    assert planned.facts["file: checks"] == "for contradictions; wholly when pruned is done"
    assert {"proxy: student", "taught: student", "taught: proxy"} <= {line.name for line in planned.models}
    with pytest.raises(SpecError, match=r"nodes.started: train.pretrained_model_path: the student of nodes.proxy"):
        radioplat.pipeline(path)
    assert not (tmp_path / "out" / "pipeline.json").exists()
    assert {p.name for p in (tmp_path / "out").glob("*/*")} == {"index"}


@pytest.fixture(scope="module")
def killed(spec, tmp_path_factory):
    """The file of a pipeline whose command was ended by SIGKILL while its second node trained."""
    home = tmp_path_factory.mktemp("killed")
    path = dag(home, spec, {"proxy": {}, "student": {"changes": [TAUGHT]}})
    process = Forked(run_script, str(ROOT / "jobs" / "pipeline.py"), "-e", str(path))
    end = time.monotonic() + 200
    while not list(home.glob("out/student/distill/model_epoch_*")) and process.poll() is None:
        assert time.monotonic() < end, process.output
        time.sleep(0.02)
    process.kill()
    assert process.poll() == -signal.SIGKILL, process.output
    return path


@pytest.fixture(scope="module")
def gone_on(killed):
    """The report of the second start, and its lines."""
    lines: list[str] = []
    return radioplat.pipeline(killed, say=lines.append), lines


def test_no_finished_node_runs_again_after_a_kill(gone_on, killed):
    report, lines = gone_on
    figures = judged(report.folder)
    assert figures["ran"] == {1: ["proxy", "student"], 2: ["student"]} and figures["reran"] == []
    assert figures["finished"] == ["proxy", "student"] and figures["products_unchanged"] == 1.0
    assert figures["record_agrees"]
    assert lines[0].endswith("1 of 2 nodes are done already") and not any("proxy starts" in line for line in lines)
    assert [(entry.name, entry.state, entry.starts) for entry in report.nodes] == [
        ("proxy", State.done, [1]),
        ("student", State.done, [1, 2]),
    ]
    assert all(entry.seconds > 0 and entry.cpu_seconds > 0 and entry.step == entry.steps == 8 for entry in report.nodes)
    assert all(entry.price == pytest.approx(entry.cpu_seconds * 0.001) for entry in report.nodes)
    log = (report.folder / "student" / "output.log").read_text()
    assert ": goes on from model_epoch_" in log  # the killed command's node had saved
    student = radioplat.load_student(report.results["student"])
    assert student.head_names == ["proxy"]


def test_what_the_pipeline_leaves(gone_on):
    report, _ = gone_on
    record = json.loads((report.folder / "pipeline.json").read_text())
    assert record["progress"] == 1.0 and record["totals"]["seconds"] > 0 and record["totals"]["price"] > 0
    page = report.report.read_text()
    assert "2 of 2 nodes are done" in page and "data:image/png;base64," in page and "An arrow leads" in page
    assert (report.folder / "pipeline.png").stat().st_size > 2000
    status = [json.loads(line) for line in (report.folder / "status.json").read_text().splitlines()]
    assert status[-1]["status"] == "SUCCESS" and status[-1]["kpi"]["done"] == 2


def test_a_changed_node_runs_again_alone(gone_on, killed):
    report, _ = gone_on
    before = {entry.name: entry for entry in report.nodes}
    lines: list[str] = []
    progress: list[float] = []

    def say(line: str) -> None:
        lines.append(line)
        progress.append(Record(report.folder).progress)

    again = radioplat.pipeline(killed, ["nodes.student.train.optim.lr=0.002"], say=say)
    assert progress[1] == 0.5 and lines[1].startswith("student begins anew")  # its old steps do not count
    assert [line.partition(";")[0] for line in lines if "begins anew" in line] == [
        "student begins anew, changed: train.optim.lr: 0.001 -> 0.002"
    ]
    assert again.nodes[0] == before["proxy"] and again.nodes[1].files != before["student"].files
    assert (report.folder / "student.before1" / "distill" / "model_latest").exists()


def test_a_changed_node_takes_nothing_over_from_a_process_that_still_saves(spec, tmp_path, monkeypatch):
    """The command is killed while its node is in a step; the next start changes that node."""
    (tmp_path / "slow_hook.py").write_text(
        "import pathlib, time\nfrom radioplat.training.hooks.step_hook import StepHook\n\n"
        "class Waits(StepHook):\n    name = 'waits'\n\n"
        "    def begin_step(self, step):\n"
        "        end = time.monotonic() + 200\n"
        f"        while step == 2 and not pathlib.Path('{tmp_path}/go').exists() and time.monotonic() < end:\n"
        "            time.sleep(0.05)\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    path = dag(tmp_path, spec, {"proxy": {"changes": ["train.hooks=['slow_hook:Waits']"]}})
    process = Forked(run_script, str(ROOT / "jobs" / "pipeline.py"), "-e", str(path))
    end = time.monotonic() + 200
    while not list(tmp_path.glob("out/proxy/distill/model_epoch_*")) and process.poll() is None:
        assert time.monotonic() < end, process.output
        time.sleep(0.02)
    process.kill()
    lines: list[str] = []

    def say(line: str) -> None:
        """Let the old process finish its step once the new start waits for it."""
        lines.append(line)
        if "is still written by process" in line:
            (tmp_path / "go").touch()

    done = radioplat.pipeline(path, ["nodes.proxy.train.optim.lr=0.002"], say=say)
    assert any("is still written by process" in line for line in lines)
    status = [
        json.loads(line) for line in (tmp_path / "out/proxy.before1/distill/status.json").read_text().splitlines()
    ]
    assert "was stopped by SIGTERM" in status[-1]["message"]
    assert len(list((tmp_path / "out/proxy.before1/distill").glob("model_epoch_*"))) == 2  # of steps 2 and 3
    assert "goes on from" not in (done.folder / "proxy" / "output.log").read_text()


@pytest.mark.proof
def test_what_needs_a_changed_node_runs_again_too(gone_on, killed):
    lines: list[str] = []
    radioplat.pipeline(killed)  # as it was, whatever a test before this one changed
    runs = len(judged(gone_on[0].folder)["ran"])
    radioplat.pipeline(killed, ["nodes.proxy.train.seed=2"], say=lines.append)
    assert [line.partition(";")[0] for line in lines if "begins anew" in line] == [
        "proxy begins anew, changed: train.seed: 1234 -> 2",
        "student begins anew, a node that it needs has another result",
    ]
    assert judged(gone_on[0].folder)["ran"][runs + 1] == ["proxy", "student"]


@pytest.mark.proof
def test_a_failed_node_stops_what_needs_it_alone(spec, tmp_path, capfd, monkeypatch):
    """The user's own hook ends a node; the one that runs side by side with it is finished."""
    hook = "from radioplat.training.hooks.step_hook import StepHook\n\nclass Ends(StepHook):\n    name = 'ends'\n\n"
    (tmp_path / "ending_hook.py").write_text(
        f"{hook}    def begin_step(self, step):\n        raise OSError('no more')\n"
    )
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    nodes = {
        "proxy": {},
        "broken": {"changes": [TAUGHT, "train.hooks=['ending_hook:Ends']"]},
        "other": {"changes": [STARTED]},
        "needy": {"needs": ["broken"]},
    }
    path = dag(tmp_path, spec, nodes, concurrent=2)
    assert main(["pipeline", "-e", str(path)]) == 1
    errors = capfd.readouterr().err
    entries = Record(tmp_path / "out").entries
    states = {entry.name: entry.state for entry in entries.values()}
    assert states == {"proxy": State.done, "broken": State.failed, "other": State.done, "needy": State.blocked}
    assert (
        "error nodes.broken: train.hooks[0]: " in errors
        and "OSError: no more" in errors
        and "needy cannot start" in errors
    )


@pytest.mark.proof
def test_sigterm_saves_and_the_same_command_continues(spec, tmp_path):
    longer = ["train.num_epochs=20", "dataset.train_dataset.tar_data_sources[0].steps_per_epoch=40"]
    path = dag(tmp_path, spec, {"proxy": {"changes": longer}, "student": {"changes": [TAUGHT]}})
    process = Forked(run_script, str(ROOT / "jobs" / "pipeline.py"), "-e", str(path))
    end = time.monotonic() + 200
    while not list(tmp_path.glob("out/proxy/distill/model_epoch_*")) and process.poll() is None:
        assert time.monotonic() < end, process.output
        time.sleep(0.02)
    process.send_signal(signal.SIGTERM)
    assert process.wait(100) == 75, process.output
    entry = Record(tmp_path / "out").entries["proxy"]
    assert entry.state is State.stopped and 0 < entry.step < entry.steps
    status = [json.loads(line) for line in (tmp_path / "out" / "status.json").read_text().splitlines()]
    assert "stopped by SIGTERM" in status[-1]["message"]
    lines: list[str] = []
    done = radioplat.pipeline(path, [f"nodes.proxy.train.max_steps={entry.step + 2}"], say=lines.append)
    assert [each.state for each in done.nodes] == [State.done, State.done]


@pytest.mark.proof
def test_other_tasks_follow_a_student(spec, tmp_path):
    """A chain of compression, a file, its engine, and all of them measured."""
    models = "evaluate.models=[{name: proxy, path: '${nodes.proxy.student}'}, {name: file, path: '${nodes.file.onnx}'}]"
    nodes = {
        "proxy": {},
        "small": {
            "task": "compress",
            "changes": ["compress.checkpoint=${nodes.proxy.student}", "compress.stages=[ptq]"],
        },
        "file": {"task": "export", "changes": ["export.checkpoint=${nodes.small.student}"]},
        "engine": {
            "task": "gen_trt_engine",
            "changes": [
                "gen_trt_engine.onnx_file=${nodes.file.onnx}",
                "gen_trt_engine.backend=onnxruntime",
                "gen_trt_engine.tensorrt.data_type=int8",
            ],
        },
        "measured": {"task": "evaluate", "changes": [models], "needs": ["engine"]},
    }
    path = dag(tmp_path, spec, nodes)
    done = radioplat.pipeline(path)
    assert all(entry.state is State.done for entry in done.nodes)
    assert done.results["file"].suffix == ".onnx" and done.results["engine"].suffix == ".engine"
    assert radioplat.load_student(done.results["small"]).architecture.quantized is not None
    measured = next(entry for entry in done.nodes if entry.name == "measured")
    assert 0 < measured.outcome.metrics["fidelity"] <= 1 and "Evaluations" in done.report.read_text()
    lines: list[str] = []
    radioplat.pipeline(path, ["nodes.file.export.opset_version=20"], say=lines.append)
    begun = [line.partition(" ")[0] for line in lines if "begins anew" in line]
    assert begun == ["file", "engine", "measured"]
    assert judged(done.folder)["ran"] == {1: ["proxy", "small"], 2: ["file", "engine", "measured"]}


@pytest.mark.proof
def test_a_student_of_several_is_a_start_by_its_name(spec, tmp_path):
    wide = {"name": "wide", "model": {"backbone": {"kwargs": {"embed_dim": 96}}}}
    family = spec | {"distill": spec["distill"] | {"students": [{"name": "first"}, wide]}}
    start = "train.pretrained_model_path=${nodes.family.students.wide}"
    nodes = {"family": {"spec": family}, "next": {"changes": [start, "train.max_steps=2"]}}
    path = dag(tmp_path, spec, nodes)
    with pytest.raises(SpecError, match=r"nodes.next: train.pretrained_model_path: the student of nodes.family"):
        radioplat.pipeline(path)
    done = radioplat.pipeline(path, ["nodes.next.model.backbone.kwargs.embed_dim=96"])
    assert all(entry.state is State.done for entry in done.nodes)
    families = done.nodes[0].files
    assert any("students/wide" in file for file in families) and any("students/first" in file for file in families)
    assert radioplat.load_student(done.results["next"]).architecture.kwargs["embed_dim"] == 96
