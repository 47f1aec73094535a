"""`ray job submit -- python jobs/...`, against a real head with its dashboard on loopback and a token."""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
import venv
import zipfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest
import yaml

import radioplat
from radioplat.tasks.tune.trial_record import State, read_trials
from radioplat.tracking.status import read_status
from radioplat.training.checkpoints.checkpoint import newest

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent


def _free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    for each in sockets:
        each.bind(("127.0.0.1", 0))
    ports = [each.getsockname()[1] for each in sockets]
    for each in sockets:
        each.close()
    return ports


@pytest.fixture(scope="module")
def token(tmp_path_factory) -> Path:
    """One token file for every process of this module."""
    path = tmp_path_factory.mktemp("token") / "token"
    path.touch(mode=0o600)
    path.write_text(secrets.token_hex(32))
    return path


@pytest.fixture(scope="module")
def environment(token, ray_environment) -> dict[str, str]:
    """Of the head and of whoever speaks with it."""
    group = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE")  # left by the local runs of other modules
    clean = {k: v for k, v in ray_environment.items() if k not in group}
    return clean | {
        "PATH": f"{BIN}:{os.environ['PATH']}",
        "RAY_AUTH_MODE": "token",
        "RAY_AUTH_TOKEN_PATH": str(token),
        "RAY_USAGE_STATS_ENABLED": "0",
        "RAY_JOB_STOP_WAIT_TIME_S": "60",
    }


@pytest.fixture(scope="module")
def head(environment) -> Iterator[str]:
    """A cluster of one head; the dashboard's address."""
    with running_head(environment) as address:
        yield address


@contextlib.contextmanager
def running_head(environment: dict[str, str], python: str = sys.executable) -> Iterator[str]:
    """A head whose workers are of that Python; ended by the ids of its own processes."""
    folder = tempfile.mkdtemp(prefix="rp-")  # short: Ray's socket names must fit in 107 bytes
    gcs, dashboard, client, agent, agent_grpc, metrics = _free_ports(6)
    command = [
        python,
        "-m",
        "ray.scripts.scripts",
        "start",
        "--head",
        "--block",
        "--num-cpus=6",
        f"--port={gcs}",
        "--dashboard-host=127.0.0.1",
        f"--dashboard-port={dashboard}",
        f"--ray-client-server-port={client}",
        f"--dashboard-agent-listen-port={agent}",
        f"--dashboard-agent-grpc-port={agent_grpc}",
        f"--metrics-export-port={metrics}",
        f"--temp-dir={folder}",
        "--disable-usage-stats",
    ]
    log = open(f"{folder}/head.log", "w")
    process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, start_new_session=True)
    try:
        until = time.monotonic() + 60
        while not _answers(dashboard):
            assert process.poll() is None and time.monotonic() < until, Path(log.name).read_text()
            time.sleep(0.2)
        yield f"http://127.0.0.1:{dashboard}"
    finally:
        family = [*psutil.Process(process.pid).children(recursive=True), psutil.Process(process.pid)]
        for member in family:
            try:
                member.send_signal(signal.SIGKILL)
            except psutil.NoSuchProcess:
                pass
        process.wait()
        psutil.wait_procs(family, timeout=10)
        log.close()
        shutil.rmtree(folder, ignore_errors=True)


def _answers(port: int) -> bool:
    with socket.socket() as probe:
        return probe.connect_ex(("127.0.0.1", port)) == 0


@pytest.fixture(scope="module")
def submit(head, environment):
    """submit(*command, **environment) -> (exit status, output) of `ray job submit`, which waits for the job's end."""

    def run(*command: str, **other: str) -> tuple[int, str]:
        ray = [BIN / "ray", "job", "submit", f"--address={head}", "--runtime-env=jobs/runtime_env.yaml", "--", "python"]
        done = subprocess.run(
            [*ray, *command],
            cwd=ROOT,
            env=environment | other,
            capture_output=True,
            text=True,
            timeout=280,
            check=False,
        )
        return done.returncode, done.stdout + done.stderr

    return run


@pytest.fixture(scope="module")
def small(make_spec):
    """small(results_dir): a spec of one teacher."""

    def make(results: Path | str) -> dict:
        spec = make_spec(results, {"cluster": {"mode": "auto"}})
        spec["distill"]["teacher"] = spec["distill"]["teacher"][1:]
        del spec["teachers"]["lite0"]
        return spec

    return make


@pytest.fixture(scope="module")
def student(submit, small, tmp_path_factory) -> Path:
    """The spec of a run of two steps, done by the first job, in whose folder its results lie."""
    folder = tmp_path_factory.mktemp("student")
    path = folder / "spec.yaml"
    path.write_text(yaml.safe_dump(small("results/never")))
    before, job = path.read_bytes(), ["jobs/radio_distill.py", "-e", str(path)]
    status, output = submit(*job, f"results_dir={folder}", "train.max_steps=2")
    assert status == 0 and "succeeded" in output, output
    assert "this cluster has no GPU: the run has 1 CPU worker" in output
    assert path.read_bytes() == before
    return path


def changed(spec_file: Path, results: Path, changes: dict) -> str:
    """A spec like that one, about the student that it made; its path."""
    spec = yaml.safe_load(spec_file.read_text()) | {"results_dir": str(results)} | changes
    path = results / "spec.yaml"
    path.write_text(yaml.safe_dump(spec))
    return str(path)


def test_a_submitted_job_trains(student):
    folder = student.parent / "distill"
    lines = read_status(folder / "status.json")
    assert lines[-1]["status"] == "SUCCESS" and [line["step"] for line in lines if "max_step" in line] == [1, 2]
    assert radioplat.load_student(folder / "model_latest").head_names == ["vit"]


@pytest.mark.proof
def test_a_path_inside_rays_copy_is_refused(submit, student):
    status, output = submit("jobs/radio_distill.py", "-e", str(student))
    assert status == 1
    assert "results_dir: results/never is relative" in output and "results_dir=$PWD/results/never" in output
    assert "Traceback" not in output
    assert not (ROOT / "results" / "never").exists()


@pytest.mark.proof
def test_compress(submit, student, tmp_path):
    chain = {"checkpoint": str(student.parent / "distill" / "model_latest"), "stages": ["ptq", "export"]}
    spec = changed(student, tmp_path, {"compress": chain})
    status, output = submit("jobs/compress.py", "-e", spec)
    assert status == 0, output
    record = json.loads((tmp_path / "compress" / "compress.json").read_text())
    assert [stage["stage"] for stage in record["stages"]] == ["00_start", "ptq", "export"], record
    assert list((tmp_path / "compress").rglob("*.onnx"))
    status, output = submit("jobs/compress.py", "-e", spec, "compress.stages=[nonsense]")
    assert status == 1 and "compress.stages" in output and "Traceback" not in output


@pytest.mark.proof
def test_build_engine(submit, student, tmp_path):
    spec = changed(student, tmp_path, {"export": {"checkpoint": str(student.parent / "distill" / "model_latest")}})
    status, output = submit("jobs/build_engine.py", "-e", spec)
    assert status == 0, output
    (engine,) = tmp_path.rglob("*.engine")
    assert engine.stat().st_size > 100_000


@pytest.mark.proof
def test_sweep(submit, student, tmp_path):
    (tmp_path / "space.yaml").write_text(
        yaml.safe_dump(
            {
                "task": "distill",
                "changes": ["train.max_steps=2"],
                "parameters": {"train.optim.lr": {"grid": [1e-3, 3e-3]}},
                "objectives": [{"metric": "fidelity"}, {"metric": "macs", "mode": "min"}],
                "search": {"algorithm": "grid"},
            }
        )
    )
    spec = changed(student, tmp_path, {})
    status, output = submit("jobs/sweep.py", "-e", spec, "--space", str(tmp_path / "space.yaml"))
    assert status == 0 and "best.yaml" in output, output
    assert [record.state for record in read_trials(tmp_path / "tune")] == [State.done] * 2
    assert (tmp_path / "tune" / "best.yaml").exists() and (tmp_path / "tune" / "pareto.png").exists()


@pytest.mark.proof
def test_a_scheduler_sees_the_jobs_own_exit_status(head, environment, student, tmp_path):
    """jobs/submit.py ends as the job does; SIGTERM to it is a checkpoint and 75, and the same command goes on."""
    submitted = [sys.executable, "jobs/submit.py", f"--address={head}", "--runtime-env=jobs/runtime_env.yaml", "--"]
    job = [*submitted, "python", "jobs/radio_distill.py", "-e"]
    refused = subprocess.run([*job, "/no/such.yaml"], cwd=ROOT, env=environment, capture_output=True, text=True)
    assert refused.returncode == 1 and "/no/such.yaml" in refused.stdout, refused.stdout + refused.stderr
    killed = subprocess.run([*submitted, "sh", "-c", "exit 42"], cwd=ROOT, env=environment, capture_output=True)
    assert killed.returncode == 42
    spec = changed(student, tmp_path, {})
    long = [*job, spec, "train.num_epochs=1000", "train.checkpoint_interval=1000"]
    status = tmp_path / "distill" / "status.json"
    with open(tmp_path / "said", "w") as said:
        process = subprocess.Popen(long, cwd=ROOT, env=environment, stdout=said, stderr=said)
        until = time.monotonic() + 120
        while not (status.exists() and [line for line in read_status(status) if line.get("step", 0) >= 3]):
            assert process.poll() is None and time.monotonic() < until, (tmp_path / "said").read_text()
            time.sleep(0.2)
        process.send_signal(signal.SIGTERM)
        assert process.wait(90) == os.EX_TEMPFAIL, (tmp_path / "said").read_text()
    (checkpoint,) = (tmp_path / "distill").glob("model_epoch_*")
    assert "stopped by SIGTERM" in (tmp_path / "said").read_text()
    done = newest(checkpoint.parent)[1].global_step
    again = subprocess.run(
        [*long, f"train.max_steps={done + 1}"], cwd=ROOT, env=environment, capture_output=True, text=True
    )
    assert again.returncode == 0 and f"goes on from {checkpoint.name}" in again.stdout, again.stdout + again.stderr


@pytest.mark.proof
def test_pins_without_a_network(environment, tmp_path):
    """Nodes that have the pinned versions ask nobody; what they lack comes from a folder of wheels, or the job ends.

    The nodes' Python is a virtual environment that sees the libraries of this one: Ray copies the environment that it
    runs in, which here is gigabytes.
    """
    node = tmp_path / "node"
    venv.create(node, symlinks=True)
    (site,) = node.glob("lib/python*/site-packages")
    (site / "libraries.pth").write_text(str(Path(pytest.__file__).parents[1]))
    wheels = tmp_path / "wheels"
    a_wheel(wheels, "radioplat-probe", "1.0")
    tree = yaml.safe_load((ROOT / "jobs" / "runtime_env_pinned.yaml").read_text())
    told = "import sys, radioplat, optuna; print(sys.prefix, radioplat.__file__, optuna.__version__)"

    def run(more: list[str], options: list[str], program: str) -> tuple[int, str]:
        pip = tree["pip"] | {"packages": tree["pip"]["packages"] + more}
        pip["pip_install_options"] = pip["pip_install_options"] + options
        file = tmp_path / "runtime_env.yaml"
        file.write_text(yaml.safe_dump(tree | {"pip": pip}))
        command = [sys.executable, "jobs/submit.py", f"--address={address}", f"--runtime-env={file}", "--", "python"]
        done = subprocess.run(
            [*command, "-c", program], cwd=ROOT, env=closed, capture_output=True, text=True, timeout=200, check=False
        )
        return done.returncode, done.stdout if done.returncode == 0 else done.stdout + done.stderr

    closed = environment | {"PIP_NO_INDEX": "1", "PATH": f"{node}/bin:/usr/bin:/bin"}
    with running_head(closed, f"{node}/bin/python") as address:
        status, output = run([], [], told)
        assert status == 0, output
        prefix, code, version = output.split()[-3:]
        assert "/runtime_resources/pip/" in prefix and "/working_dir_files/" in code
        assert f"optuna=={version}" in tree["pip"]["packages"]
        probe = "import radioplat_probe; print('probe', radioplat_probe.__name__)"
        status, output = run(["radioplat-probe==1.0"], [f"--find-links={wheels}"], probe)
        assert status == 0 and "probe radioplat_probe" in output, output
        status, output = run(["radioplat-probe==2.0"], [f"--find-links={wheels}"], probe)
        assert status == 1 and "radioplat-probe==2.0" in output, output


def a_wheel(folder: Path, name: str, version: str) -> None:
    """A package of one empty module."""
    folder.mkdir()
    module = name.replace("-", "_")
    about = f"{module}-{version}.dist-info"
    with zipfile.ZipFile(folder / f"{module}-{version}-py3-none-any.whl", "w") as wheel:
        wheel.writestr(f"{module}.py", "")
        wheel.writestr(f"{about}/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n")
        wheel.writestr(f"{about}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        wheel.writestr(f"{about}/RECORD", "")


def test_without_the_token_nobody_is_let_in(submit, head, token):
    status, output = submit("jobs/radio_distill.py", RAY_AUTH_MODE="disabled")
    assert status != 0 and "token authentication is enabled" in output
    assert _http_status(f"{head}/api/jobs/", {}) == 401
    assert _http_status(f"{head}/api/jobs/", {"Authorization": f"Bearer {token.read_text()}"}) == 200


def _http_status(url: str, headers: dict[str, str]) -> int:
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code
