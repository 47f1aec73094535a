"""SIGTERM to a real run: a checkpoint, exit status 75, and the same command goes on."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import yaml
from forked import Forked, run_script

import radioplat
from benchmarks.elastic_inputs import losses_of, make_inputs, tiny_spec
from benchmarks.ledger_rows import read_consumed
from radioplat.cluster.preemption.training_locks import training_workers
from radioplat.tasks.inspect.diagnose import diagnose
from radioplat.tracking.attempts.attempts import Attempts
from radioplat.tracking.status import read_status
from radioplat.training.accounting.prove import prove_run

pytestmark = pytest.mark.timeout(180)
JOB = str(Path(__file__).parents[2] / "jobs" / "radio_distill.py")
NEVER = 100_000  # steps between checkpoints that fall due by themselves


@pytest.fixture(scope="module")
def inputs(tmp_path_factory) -> Path:
    """Shards and a teacher."""
    folder = tmp_path_factory.mktemp("inputs")
    make_inputs(folder)
    return folder


@pytest.fixture
def start(tmp_path, inputs):
    """start(**changes): the command of a run of 3,000 steps that saves nothing unasked."""
    begun = []

    def run(mode: str = "local", workers: tuple[int, int] = (1, 1), **environment: str) -> Forked:
        spec = tiny_spec(inputs, tmp_path / "run", 3000, workers, checkpoint_interval=NEVER)
        spec["cluster"]["mode"] = mode
        (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
        # A group of its own, as a batch system has it: nobody else is sent the signal.
        job = Forked(
            run_script, JOB, "-e", str(tmp_path / "spec.yaml"),
            environment=os.environ | environment, output=tmp_path / "said", new_session=True,
        )  # fmt: skip
        begun.append(job)
        return job

    yield run
    for process in begun:
        try:
            os.killpg(process.pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
        process.kill()


def wait_for(condition, what: str, seconds: float = 100.0) -> None:
    """Until ``condition()``."""
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.05)


def steps_of(folder: Path) -> int:
    """The newest step that ``status.json`` tells of."""
    return max(losses_of(folder), default=0) if (folder / "status.json").exists() else 0


def _text(path: Path) -> str:
    """What a file holds; nothing before there is one."""
    return path.read_text() if path.exists() else ""


def ends(folder: Path) -> list[str]:
    """Why each attempt ended."""
    return [event.cause for event in Attempts(folder).read() if event.event == "end"]


def test_local(start, tmp_path):
    folder, said = tmp_path / "run" / "distill", tmp_path / "said"

    early = start()
    wait_for(lambda: "starts" in _text(folder / "status.json"), "it never began")
    early.send_signal(signal.SIGTERM)
    assert early.wait(30) == os.EX_TEMPFAIL, said.read_text()
    assert not list(folder.glob("model_epoch_*")) and "no checkpoint" in said.read_text()
    assert not (folder / "lease.json").exists()

    run = start()
    wait_for(lambda: steps_of(folder) >= 3, "no step")
    run.send_signal(signal.SIGTERM)
    assert run.wait(30) == os.EX_TEMPFAIL, said.read_text()
    (checkpoint,) = folder.glob("model_epoch_*")
    done = int(checkpoint.name.rpartition("_")[2])
    assert "stopped by SIGTERM" in said.read_text() and "Traceback" not in said.read_text()
    assert ends(folder) == ["stopped"] and done == max(read_consumed(folder / "ledger")["step"].to_pylist()) + 1
    assert "stopped" in diagnose(folder).cause

    spec = yaml.safe_load((tmp_path / "spec.yaml").read_text())
    before = signal.getsignal(signal.SIGTERM)
    result = radioplat.distill(spec, [f"train.max_steps={done + 5}"], say=lambda line: None)
    assert signal.getsignal(signal.SIGTERM) is before
    assert result.resumed_from == done and result.global_step == done + 5
    assert ends(folder) == ["stopped", "done"] and prove_run(folder).holds


@pytest.mark.proof
def test_on_ray(start, tmp_path, ray_environment):
    """Two workers in actors: the command passes it on, all save at one step, and nothing is started again."""
    folder, said = tmp_path / "run" / "distill", tmp_path / "said"
    run = start("ray", (2, 2), **{k: v for k, v in ray_environment.items() if k.startswith(("RAY", "TMP", "OMP"))})
    wait_for(lambda: steps_of(folder) >= 3, "no step")
    begin = time.monotonic()
    run.send_signal(signal.SIGTERM)
    assert run.wait(60) == os.EX_TEMPFAIL, said.read_text()
    assert time.monotonic() - begin < 40
    (checkpoint,) = folder.glob("model_epoch_*")
    done = int(checkpoint.name.rpartition("_")[2])
    assert ends(folder) == ["stopped"] and done == max(read_consumed(folder / "ledger")["step"].to_pylist()) + 1
    spec = yaml.safe_load((tmp_path / "spec.yaml").read_text()) | {"cluster": {"mode": "local"}}
    spec["train"] |= {"max_steps": done + 2, "min_workers": 1, "max_workers": 1, "num_gpus": 1}
    result = radioplat.distill(spec, say=lambda line: None)
    assert result.resumed_from == done and prove_run(folder).holds


@pytest.mark.proof
@pytest.mark.timeout(300)
@pytest.mark.parametrize(("told", "status"), [(signal.SIGTERM, os.EX_TEMPFAIL), (signal.SIGINT, 130)])
def test_a_node_goes_and_there_is_no_other(start, tmp_path, ray_environment, told, status):
    """Its worker saves and leaves, `nodes drain --wait` sees it go, and the run that waits for room is told to stop, or
    interrupted."""
    folder, said = tmp_path / "run" / "distill", tmp_path / "said"
    quick = {k: v for k, v in ray_environment.items() if k.startswith(("RAY", "TMP", "OMP"))}
    quick |= {"RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "1", "RADIOPLAT_LOCAL_FOLDER": f"/tmp/rps-{os.getpid()}"}
    script = [Path(__file__).parents[2] / "clusters" / "local.sh"]
    up = subprocess.run(
        [*script, "up", "1"], env=os.environ | quick | {"PYTHON": sys.executable}, capture_output=True, text=True
    )
    assert up.returncode == 0, up.stderr
    try:
        joined = quick | dict(re.findall(r"(\w+)=(\S+)", up.stdout))
        run = start("ray", **joined)
        wait_for(lambda: steps_of(folder) >= 3, "no step")
        assert training_workers()
        node = training_node(os.environ | joined)
        drain = [sys.executable, "-m", "radioplat.cli", "nodes", "drain", "--seconds=60", "--wait", f"--node-id={node}"]
        done = subprocess.run(drain, env=os.environ | joined, capture_output=True, text=True, check=False)
        assert done.returncode == 0 and "no worker trains here any more" in done.stderr, done.stderr
        wait_for(lambda: ends(folder) == ["drained"], "it did not leave")
        (checkpoint,) = folder.glob("model_epoch_*")
        assert int(checkpoint.name.rpartition("_")[2]) == max(read_consumed(folder / "ledger")["step"].to_pylist()) + 1
        wait_for(lambda: "waiting for resources" in said.read_text(), "it does not wait for resources")
        assert run.poll() is None
        run.send_signal(told)
        assert run.wait(60) == status, said.read_text()
    finally:
        subprocess.run([*script, "down"], env=os.environ | quick, check=False)


@pytest.mark.proof
def test_a_stage_of_a_chain(inputs, tmp_path):
    """The stage saves, the chain ends with 75, and the same command goes on in the stage."""
    spec = tiny_spec(inputs, tmp_path / "run", 3000, (1, 1), checkpoint_interval=NEVER)
    spec["cluster"]["mode"] = "local"
    make_inputs(tmp_path / "held_out")
    spec["dataset"]["val_dataset"] = {"tar_data_sources": [{"root_dir": str(tmp_path / "held_out" / "shards")}]}
    spec["compress"] = {"stages": ["distill", "export"]}
    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    command = [sys.executable, str(Path(__file__).parents[2] / "jobs" / "compress.py"), "-e", tmp_path / "spec.yaml"]
    chain, said = tmp_path / "run" / "compress", tmp_path / "said"
    folder = chain / "01_distill" / "distill"
    with open(said, "w") as out, subprocess.Popen(command, stdout=out, stderr=out, start_new_session=True) as process:
        wait_for(lambda: steps_of(folder) >= 3 or process.poll() is not None, "no step")
        assert process.poll() is None, said.read_text()
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == os.EX_TEMPFAIL, said.read_text()
    (checkpoint,) = folder.glob("model_epoch_*")
    done = int(checkpoint.name.rpartition("_")[2])
    last = read_status(chain / "status.json")[-1]
    assert "stopped by SIGTERM" in last["message"] and last["status"] == "RUNNING"
    again = [*command, f"train.max_steps={done + 2}"]
    ended = subprocess.run(again, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    assert list(chain.rglob("*.onnx"))


def training_node(environment: dict[str, str]) -> str:
    """Id of the node that has a place for a training worker."""
    find = (
        "import ray; ray.init(logging_level='ERROR', log_to_driver=False)\n"
        "print([n['NodeID'] for n in ray.nodes() if n['Alive'] and 'radioplat_worker' in n['Resources']][0])"
    )
    done = subprocess.run([sys.executable, "-c", find], env=environment, capture_output=True, text=True, check=True)
    return done.stdout.split()[-1]
