"""What jobs take along, and how small they are."""

from __future__ import annotations

import tomllib
from pathlib import Path

import pytest
import yaml
from packaging.requirements import Requirement
from ray.runtime_env import RuntimeEnv

ROOT = Path(__file__).parents[1]
ENVIRONMENTS = ("runtime_env", "runtime_env_pinned")


def test_jobs_are_thin():
    jobs = sorted(ROOT.glob("jobs/*.py"))
    assert {path.stem for path in jobs} >= {"radio_distill", "sweep", "compress", "build_engine"}
    for path in jobs:
        assert len(path.read_text().splitlines()) < 60, path


@pytest.mark.parametrize("name", ENVIRONMENTS)
def test_ray_accepts_the_environment(name):
    tree = yaml.safe_load((ROOT / "jobs" / f"{name}.yaml").read_text())
    RuntimeEnv(**tree | {"working_dir": str(ROOT)})
    sent = {path.name for path in ROOT.iterdir()} - set(tree["excludes"])
    assert sent >= {"radioplat", "jobs", "specs", "tune_spaces", "constraints.txt", "pyproject.toml"}
    with pytest.raises(ValueError, match="uv"):
        RuntimeEnv(uv=["torch"], **RuntimeEnv(pip=["torch"]))


def test_pins_are_ours():
    """Every library that radioplat and the scripts of jobs/ need, in the version of constraints.txt."""
    pinned = yaml.safe_load((ROOT / "jobs" / "runtime_env_pinned.yaml").read_text())["pip"]["packages"]
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    extras = project["optional-dependencies"]
    needed = [*project["dependencies"], *extras["onnx"], *extras["tune"], *extras["wandb"]]
    lines = [line for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line]
    versions = {name.lower(): version for name, _, version in (line.partition("==") for line in lines)}
    wanted = {r.name: (r.extras, f"=={versions[r.name.lower()]}") for r in map(Requirement, needed)}
    assert {r.name: (r.extras, str(r.specifier)) for r in map(Requirement, pinned)} == wanted
