"""``clusters/local.sh``, run for real: raylets, a token, a notice for one of them, and the end of every process."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import urllib.error
import urllib.request
from pathlib import Path

import pytest

pytestmark = [pytest.mark.ray, pytest.mark.timeout(180)]

CLIENT = """
import json, sys
import ray
from ray._private.state import state
ray.init(logging_level="ERROR", log_to_driver=False)
ran = ray.get(ray.remote(lambda: 6 * 7).options(resources={"radioplat_worker": 1}).remote())
nodes = {n["NodeID"]: n["Resources"].get("radioplat_worker", 0) for n in ray.nodes() if n["Alive"]}
print(json.dumps({"ran": ran, "nodes": nodes, "going": list(state.get_draining_nodes() or {})}))
"""


@pytest.fixture(scope="module")
def script(clusters, tmp_path_factory):
    """script(command, ...) -> the finished process; it knows no other cluster, and its own ends with the module."""
    dropped = ("RAY_ADDRESS", "RADIOPLAT_LOCAL_FOLDER")
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_AUTH") and k not in dropped}
    state = tmp_path_factory.mktemp("state")
    environment |= {"XDG_STATE_HOME": str(state), "PYTHON": sys.executable, "OMP_NUM_THREADS": "1"}

    def run(*arguments: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [clusters / "local.sh", *arguments], env=environment, capture_output=True, text=True, check=False
        )

    run.state = state / "radioplat"
    yield run
    run("down")


@pytest.fixture(scope="module")
def environment(script) -> dict[str, str]:
    """Of a process that uses the cluster; started with two nodes beside the head."""
    done = script("up", "2")
    assert done.returncode == 0, done.stderr
    given = dict(re.findall(r"(\w+)=(\S+)", done.stdout))
    assert script("environment").stdout == done.stdout
    return os.environ | given


def client(environment: dict[str, str]) -> dict:
    done = subprocess.run([sys.executable, "-c", CLIENT], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_nodes_and_a_notice(environment, script):
    found = client(environment)
    assert found["ran"] == 42 and sorted(found["nodes"].values()) == [0, 1, 1] and not found["going"]
    node = next(name for name, places in found["nodes"].items() if places)
    command = [sys.executable, "-m", "radioplat.cli", "nodes", "drain", "--seconds=100", "--wait", f"--node-id={node}"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "no worker trains here any more" in done.stderr, done.stderr
    later = client(environment)  # an idle node that was drained goes at once
    assert node in later["going"] or node not in later["nodes"]
    assert later["ran"] == 42, "the other one has room"


def test_a_second_one_is_refused(environment, script):
    done = script("up")
    assert done.returncode == 1 and "there is one already" in done.stderr


def test_strangers_are_refused(environment, script):
    token = Path(environment["RAY_AUTH_TOKEN_PATH"])
    assert token.stat().st_mode & 0o077 == 0 and token.parent.stat().st_mode & 0o077 == 0
    assert re.fullmatch(r"/tmp/radioplat-\w{8}", str(token.parent))
    jobs = environment["RADIOPLAT_DASHBOARD"] + "/api/jobs/"
    assert [status(jobs, key) for key in (None, "0" * 64, token.read_text())] == [401, 403, 200]


def status(url: str, key: str | None) -> int:
    """Of an HTTP request that carries ``key``."""
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    try:
        with urllib.request.urlopen(urllib.request.Request(url, headers=headers), timeout=30) as answer:
            return answer.status
    except urllib.error.HTTPError as error:
        return error.code


def test_down_ends_everything(environment, script):
    (record,) = script.state.iterdir()
    folder = Path(record.read_text().strip())
    groups = [int(line.split()[0]) for line in (folder / "groups").read_text().splitlines()]
    assert len(groups) == 3 and all(alive(group) for group in groups[:1])
    done = script("down")
    assert done.returncode == 0 and not folder.exists() and not record.exists()
    assert not any(alive(group) for group in groups)
    assert script("down").returncode == 0, "twice is no error"
    assert script("environment").returncode == 1


def alive(group: int) -> bool:
    """Whether a process of the group is left."""
    try:
        os.killpg(group, 0)
    except ProcessLookupError:
        return False
    return True
