"""The wheel, as a user has it: built from the files that git tracks, installed and used outside a checkout."""

from __future__ import annotations

import email
import json
import os
import shutil
import site
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[2]
STARTER = ("specs", "tune_spaces", "jobs", "clusters")


def tracked(*folders: str) -> list[str]:
    """Files of the checkout, without those that .gitignore names."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", *folders]
    return [f for f in subprocess.check_output(command, cwd=ROOT, text=True).splitlines() if (ROOT / f).is_file()]


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    """`python -m build`: a source archive, and the wheel built from that archive alone."""
    source, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("dist")
    for file in tracked("radioplat", *STARTER, "*.toml", "*.in", "setup.py", "README.md", "LICENSE", "NOTICE"):
        (source / file).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / file, source / file)
    command = [sys.executable, "-m", "build", "--no-isolation", "--outdir", str(out), str(source)]
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    return next(out.glob("*.whl"))


@pytest.fixture(scope="module")
def radioplat(wheel, tmp_path_factory):
    """radioplat(*arguments, cwd) -> the command of a new environment that has the wheel; libraries are those here."""
    home = tmp_path_factory.mktemp("environment")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", home], check=True)
    (packages,) = home.glob("lib/python*/site-packages")
    # Not the .pth files in there, which would bring this checkout.
    (packages / "libraries.pth").write_text("\n".join(site.getsitepackages()))
    pip = [sys.executable, "-m", "pip", "--python", str(home / "bin" / "python"), "install", "--quiet", "--no-deps"]
    subprocess.run([*pip, "--no-index", str(wheel)], check=True)
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}

    def run(*arguments: str, cwd: Path) -> subprocess.CompletedProcess:
        command = [home / "bin" / "radioplat", *arguments]
        return subprocess.run(command, cwd=cwd, env=environment, capture_output=True, text=True, check=False)

    return run


def test_the_wheel_has_every_file(wheel):
    names = set(zipfile.ZipFile(wheel).namelist())
    assert [file for file in tracked("radioplat") if file not in names] == []
    started = [file for file in tracked(*STARTER) if not file.startswith("clusters/images/")]
    assert [file for file in started if f"radioplat/starter/{file}" not in names] == []
    assert not any("__pycache__" in name or name.startswith("tests/") for name in names)


def test_the_wheel_says_what_it_is_by_whom_and_under_which_licence(wheel):
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
        about = email.message_from_bytes(archive.read(name))
        names = archive.namelist()
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    assert (about["Name"], about["Version"], about["Summary"]) == (
        "radioplat",
        project["version"],
        project["description"],
    )
    assert about["License-Expression"] == "Apache-2.0" and about["Author"] == "The radioplat authors"
    assert about.get_all("License-File") == ["LICENSE", "NOTICE"]
    assert sum(name.endswith((".dist-info/licenses/LICENSE", ".dist-info/licenses/NOTICE")) for name in names) == 2
    assert about["Description-Content-Type"] == "text/markdown"
    assert about.get_payload(decode=True).decode() == (ROOT / "README.md").read_text()


def test_init_writes_what_the_checkout_has(radioplat, tmp_path):
    done = radioplat("init", "mine", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "radioplat plan -e specs/my_images.yaml" in done.stdout
    for file in tracked(*STARTER):
        if not file.startswith("clusters/images/"):
            assert (tmp_path / "mine" / file).read_bytes() == (ROOT / file).read_bytes(), file
    again = radioplat("init", "mine", cwd=tmp_path)
    assert again.returncode == 1 and "it contains specs" in again.stderr
    wrong = radioplat("init", "other", "--spec", "my_image", cwd=tmp_path)
    assert wrong.returncode == 1 and "my_images" in wrong.stderr and not (tmp_path / "other").exists()


@pytest.mark.proof
@pytest.mark.timeout(600)
def test_a_student_is_distilled_outside_a_checkout(radioplat, corpora, weights, tmp_path):
    """The spec that `init` names, on a folder of images, with the teacher that is here: no hub can be reached."""
    assert radioplat("init", "mine", cwd=tmp_path).returncode == 0
    folder = tmp_path / "mine"
    shutil.copytree(corpora / "folders", folder / "images")
    path = folder / "specs" / "my_images.yaml"
    spec = yaml.safe_load(path.read_text())
    spec["model"]["backbone"] = {"type": "test_efficientnet"}
    spec["dataset"]["img_size"] = 64
    teacher = spec["distill"]["teacher"][0]
    teacher |= {"pretrained_teacher_model_path": str(weights["lite0"]), "input_size": 64}
    teacher["model"]["backbone"]["type"] = "tf_efficientnet_lite0"
    path.write_text(yaml.safe_dump(spec))
    for command in ("plan", "distill"):
        done = radioplat(command, "-e", "specs/my_images.yaml", "train.max_steps=2", cwd=folder)
        assert done.returncode == 0, done.stdout + done.stderr
    lines = (folder / "results" / "my_images" / "distill" / "status.json").read_text().splitlines()
    assert json.loads(lines[-1])["status"] == "SUCCESS"
