"""The images: their instructions, what they copy, what they pin, and that the manifests pull what is built."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from tests.clusters.test_launcher import check_no_secrets

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
IMAGES = ("cpu", "cuda", "deploy")
# Dockerfile reference, "Overview"; MAINTAINER is deprecated, ADD fetches and unpacks unasked.
INSTRUCTIONS = {"FROM", "ARG", "ENV", "RUN", "COPY", "WORKDIR", "USER", "CMD"}


@pytest.fixture(params=IMAGES)
def dockerfile(request) -> list[tuple[str, str]]:
    """Instructions and their arguments, continued lines joined."""
    return instructions(request.param)


def instructions(name: str) -> list[tuple[str, str]]:
    text = (ROOT / "clusters" / "images" / f"{name}.Dockerfile").read_text()
    check_no_secrets(text)
    lines = re.sub(r"\\\n", " ", re.sub(r"^\s*#.*\n", "", text, flags=re.MULTILINE)).splitlines()
    return [tuple(line.strip().split(maxsplit=1)) for line in lines if line.strip()]


def installs(steps: list[tuple[str, str]]) -> list[list[str]]:
    """Every ``pip install``, as its words."""
    commands = [part for name, text in steps if name == "RUN" for part in text.split("&&")]
    return [words for words in map(shlex.split, commands) if words[:2] == ["pip", "install"]]


def test_instructions(dockerfile):
    names = [name for name, _ in dockerfile]
    assert set(names) <= INSTRUCTIONS and names[:2] == ["ARG", "FROM"] and names[-1] == "CMD"
    base = dockerfile[0][1].removeprefix("BASE=")
    assert dockerfile[1][1] == "$BASE", "so that a digest can be given"
    assert re.fullmatch(r"python:3\.\d+\.\d+-slim-\w+", base), "a version, not what is latest today"
    version = tuple(int(part) for part in base[len("python:") :].split("-")[0].split(".")[:2])
    assert (3, 11) <= version <= (3, 13)


@pytest.mark.parametrize("name", IMAGES)
def test_hadolint(name):
    command = [BIN / "hadolint", ROOT / "clusters" / "images" / f"{name}.Dockerfile"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and not done.stdout, done.stdout + done.stderr


def test_nobody_is_root(dockerfile):
    users = [text for name, text in dockerfile if name == "USER"]
    assert users == ["1000:1000"]  # Kubernetes cannot tell from a name that it is not root
    assert any("useradd --uid 1000" in text for name, text in dockerfile if name == "RUN")
    assert max(i for i, (name, _) in enumerate(dockerfile) if name == "RUN") < [n for n, _ in dockerfile].index("USER")


def test_what_is_copied_is_there_and_sent(dockerfile):
    ignored = (ROOT / ".dockerignore").read_text().splitlines()
    sent = {line[1:] for line in ignored if line.startswith("!")}
    for name, text in dockerfile:
        for source in text.split()[:-1] if name == "COPY" else ():
            assert (ROOT / source).exists(), source
            assert any(source == s or source.startswith(f"{s}/") for s in sent), f".dockerignore leaves out {source}"


def test_pip_is_pinned_and_leaves_no_cache(dockerfile):
    for words in installs(dockerfile):
        assert "--no-cache-dir" in words and words[words.index("-c") + 1] == "constraints.txt"
    requirements = (ROOT / "clusters" / "images" / "head.txt").read_text().splitlines()
    pins = {line.partition("==")[0].lower() for line in (ROOT / "constraints.txt").read_text().splitlines()}
    for line in requirements:
        assert line.startswith("#") or "==" in line or line in pins, f"{line} has no version"
    for name, text in dockerfile:
        if name == "RUN" and "apt-get install" in text:
            assert "--no-install-recommends" in text and "rm -rf /var/lib/apt/lists/*" in text


def test_extras_exist(dockerfile):
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    for words in installs(dockerfile):
        for word in words:
            if word.startswith(".["):
                assert set(word[2:-1].split(",")) <= set(extras)


def test_manifests_pull_what_is_built():
    version = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["version"]
    built = {f"REGISTRY/radioplat-{name}:{version}" for name in IMAGES}
    pins = dict(line.split("==") for line in (ROOT / "constraints.txt").read_text().splitlines() if "==" in line)
    pulled = set()
    for path in (ROOT / "clusters").rglob("*.yaml"):
        text = path.read_text()
        for image, digest in re.findall(r"(?:docker:)?(\S+/radioplat-\w+:[^@\s]+)(\S*)", text):
            pulled.add(image)
            name = re.search(r"radioplat-(\w+):", image)[1]
            assert digest == f"@{name.upper()}_DIGEST", f"{path}: {image} has no place for its digest"
            assert digest[1:] in text.partition("\n\n")[0].partition("apiVersion")[0], f"{path} does not tell of it"
        for script in re.findall(r"/app/(jobs/\w+\.py)", text):
            assert (ROOT / script).exists(), f"{path}: {script}"
    assert pulled and pulled <= built
    cluster = yaml.safe_load((ROOT / "clusters" / "kuberay" / "raycluster.yaml").read_text())
    assert cluster["spec"]["rayVersion"] == pins["ray"]


def test_images_without_a_digest_are_named(tmp_path):
    """The script that users run, on files as they are and with digests."""
    script = [sys.executable, ROOT / "clusters" / "images" / "pinned.py"]

    def run(*files: Path) -> tuple[int, list[str]]:
        done = subprocess.run([*script, *files], capture_output=True, text=True, check=False)
        assert not done.stderr
        return done.returncode, done.stdout.splitlines()

    code, lines = run()
    assert code == 1 and {Path(line.partition(":")[0]).name for line in lines} == {
        "aws.yaml", "gcp.yaml", "job.yaml", "raycluster.yaml", "rayjob.yaml", "skypilot.yaml",
        *(f"{name}.Dockerfile" for name in IMAGES)
    }  # fmt: skip
    files = []
    for path in (*(ROOT / "clusters").rglob("*.yaml"), *(ROOT / "clusters" / "images").glob("*.Dockerfile")):
        text = re.sub(r"C\w+_DIGEST$", f"sha256:{'0a' * 32}", path.read_text(), flags=re.MULTILINE)
        files.append(tmp_path / path.name)
        files[-1].write_text(re.sub(r"^(ARG BASE=.*)$", rf"\1@sha256:{'0a' * 32}", text, flags=re.MULTILINE))
    assert run(*files) == (0, ["all images are pinned"])
    for ending in ("", ":latest", "@sha256:0a0a", f"@md5:{'0a' * 32}"):
        files[0].write_text(f"kind: Pod\n---\nspec: {{containers: [{{image: {path.stem}{ending}}}]}}\n")
        code, lines = run(*files)
        assert code == 1 and len(lines) == 1 and f"{path.stem}{ending} is not pinned" in lines[0]


@pytest.mark.proof
@pytest.mark.parametrize("name", ["cuda", "cpu", "deploy"])
def test_what_is_installed_works(name, tmp_path):
    """The folder that the image has, out of what is sent to the builder; its own package installed as there, without
    the dependencies, which are here; then what its users call."""
    app, site = tmp_path / "app", tmp_path / "site"
    for kind, text in instructions(name):
        if kind == "COPY":
            *sources, target = text.split()
            for source in sources:
                copied(ROOT / source, app / target)
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-deps", "--no-build-isolation", "--no-index"]
    subprocess.run([*pip, f"--target={site}", "."], cwd=app, check=True)
    files = ["radioplat", *subprocess.check_output(["git", "ls-files", "radioplat"], cwd=ROOT, text=True).split()]
    assert [file for file in files if not (site / file).exists()] == [], "package-data of pyproject.toml"
    environment = os.environ | {"PYTHONPATH": str(site)}

    def run(*command: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [sys.executable, *command], cwd=app, env=environment, capture_output=True, text=True, check=False
        )

    shutil.rmtree(app / "radioplat")  # the checkout that was installed: what runs must be what pip made of it
    assert run("-c", "import radioplat; print(radioplat.__file__)").stdout.startswith(str(site))
    for command in (["-m", "radioplat.cli", "default_specs"], ["jobs/radio_distill.py", "--help"]):
        done = run(*command)
        assert done.returncode == 0 and done.stdout, done.stderr
    found = json.loads(run("-m", "radioplat.cli", "doctor", "--json").stdout)["findings"]
    assert {f["what"] for f in found} >= {"Python", "libraries", "tested versions", "shared memory (/dev/shm)"}


def copied(source: Path, target: Path) -> None:
    """As COPY does; ``.dockerignore`` keeps caches out."""
    target.mkdir(parents=True, exist_ok=True)
    if source.is_dir():
        shutil.copytree(source, target, dirs_exist_ok=True, ignore=shutil.ignore_patterns("__pycache__"))
    else:
        shutil.copy(source, target)


@pytest.mark.proof
@pytest.mark.timeout(900)
def test_install_steps_resolve(dockerfile):
    """pip finds a set of wheels for each step, from the registry that it is set to; nothing is installed."""
    for words in installs(dockerfile):
        if "--index-url" in words:  # torch's own index, which is no registry's mirror
            at = words.index("--index-url")
            words = words[:at] + words[at + 2 :]
        words = [w.replace("head.txt", "clusters/images/head.txt") for w in words]
        command = [sys.executable, "-m", *words, "--dry-run", "--ignore-installed", "--quiet", "--only-binary=:all:"]
        if "." in words or any(w.startswith(".[") for w in words):
            command.remove("--only-binary=:all:")
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr[-2000:]
