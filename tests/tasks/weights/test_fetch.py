"""Weights by address: fetched once from a hub on loopback, pinned, used in a spec, and refused where they differ."""

from __future__ import annotations

import json
import re
from concurrent.futures import ProcessPoolExecutor
from pathlib import Path

import pytest
import timm
from safetensors.torch import save

from radioplat.errors import SpecError
from radioplat.spec.checks.tasks.training_run import check
from radioplat.spec.loading.load import load_spec
from radioplat.spec.loading.weights_fields import WEIGHTS, unfetched_weights, weights_fields
from radioplat.spec.reference.fields import all_fields
from radioplat.spec.weights.lock import Entry, Pin, add_to_lock, read_lock
from tests.helpers.loopback_hub import Hub, loopback_hub, sha

MODEL = "timm/vit_tiny_patch16_224.augreg_in21k"


@pytest.fixture(scope="module")
def weights() -> bytes:
    return save(timm.create_model("vit_tiny_patch16_224", depth=1).state_dict())


@pytest.fixture
def hub(weights):
    with loopback_hub() as served:
        served.put(MODEL, model__safetensors=weights, config__json=b"{}", README__md=b"#", model__onnx=b"x")
        served.libraries[MODEL] = "timm"
        yield served


def lock(tmp_path: Path) -> dict:
    return json.loads((tmp_path / "weights.lock.json").read_text())["weights"]


def test_a_model_of_timm_is_fetched_pinned_and_used(hub: Hub, run, tmp_path, weights):
    address = "timm:vit_tiny_patch16_224.augreg_in21k"
    out = run("weights", "fetch", address)
    path = Path(out.split(": ")[1].split(" (")[0])
    assert path.name == "model.safetensors" and path.read_bytes() == weights
    entry = lock(tmp_path)[address]
    assert entry["revision"] == sha(MODEL, 0) and list(entry["files"]) == ["model.safetensors"]
    # The spec names the address; nothing is downloaded any more.
    before = len(hub.requests)
    (tmp_path / "images").mkdir()
    spec = {
        "dataset": {"img_size": 64, "train_dataset": {"images_dir": "images"}},
        "model": {"backbone": {"type": "vit_tiny_patch16_224", "kwargs": {"depth": 1}}},
        "distill": {
            "teacher": [
                {
                    "model": {"backbone": {"type": "vit_tiny_patch16_224", "kwargs": {"depth": 1, "img_size": 64}}},
                    "pretrained_teacher_model_path": address,
                }
            ]
        },
    }
    (tmp_path / "spec.yaml").write_text(json.dumps(spec))
    planned = run("plan", "-e", "spec.yaml", code=1, HF_ENDPOINT="http://127.0.0.1:1")
    assert "pretrained_teacher_model_path" not in planned and "images contains no image" in planned
    assert len(hub.requests) == before
    # A byte that differs is found by plan, and mended by fetch.
    blob = path.resolve()
    blob.write_bytes(b"\0" + weights[1:])
    assert "is not the file that weights.lock.json pins" in run("plan", "-e", "spec.yaml", code=1)
    run("weights", "fetch")
    assert path.read_bytes() == weights
    run("weights", "fetch", HF_ENDPOINT="http://127.0.0.1:1")  # all is here: no hub is needed
    path.resolve().unlink()
    assert "is missing. Run `radioplat weights fetch timm:" in run("plan", "-e", "spec.yaml", code=1)
    run("weights", "fetch")
    assert path.read_bytes() == weights


def test_a_repository_is_fetched_without_what_nobody_reads(hub: Hub, run, tmp_path, weights):
    hub.put("org/clip", model__safetensors=weights, pytorch_model__bin=b"x", config__json=b"{}", merges__txt=b"a b")
    out = run("weights", "fetch", "hf://org/clip")
    folder = Path(out.split(": ")[1].split(" (")[0])
    assert sorted(each.name for each in folder.iterdir()) == ["config.json", "merges.txt", "model.safetensors"]
    assert "2 file(s)" not in out and "3 file(s)" in out
    # A newer commit: what is pinned stays, unless it is updated; an old commit can be named.
    hub.put("org/clip", model__safetensors=weights[:-1])
    run("weights", "fetch", "hf://org/clip")
    assert lock(tmp_path)["hf://org/clip"]["revision"] == sha("org/clip", 0)
    run("weights", "fetch", "hf://org/clip", "--update")
    assert lock(tmp_path)["hf://org/clip"]["revision"] == sha("org/clip", 1)
    run("weights", "fetch", f"hf://org/clip@{sha('org/clip', 0)}/model.safetensors")
    assert len(lock(tmp_path)) == 2


def test_what_the_hub_refuses_is_said(hub: Hub, run, weights):
    hub.put("org/sam", model__safetensors=weights)
    hub.gated.add("org/sam")
    refused = run("weights", "fetch", "hf://org/sam", code=1)
    assert f"the repository is gated. Accept its licence on {hub.url}/org/sam, and set HF_TOKEN" in refused
    assert hub.token not in run("weights", "fetch", "hf://org/sam", HF_TOKEN=hub.token)
    assert "no repository org/none, or it is private" in run("weights", "fetch", "hf://org/none", code=1)
    assert "has no revision v9" in run("weights", "fetch", "hf://org/sam@v9", code=1, HF_TOKEN=hub.token)
    hub.put("org/text", README__md=b"#")
    assert "the repository has no weights" in run("weights", "fetch", "hf://org/text", code=1)
    assert "has no b.pth; it has model.safetensors" in run("weights", "fetch", f"hf://{MODEL}/b.pth", code=1)
    assert "cannot be the name of a repository" in run("weights", "fetch", "hf://org/a--b", code=1)
    assert "timm has, for example" in run("weights", "fetch", "timm:vit_tiny_patch16_224.no_such_tag", code=1)
    assert "hash of one file of a web server" in run("weights", "fetch", f"hf://{MODEL}", "--sha256", "a" * 64, code=1)
    secret = "https://me:pass@server/a.pth", "https://server/a.pth?token=pass"
    assert all("a password or a query" in (said := run("weights", "fetch", one, code=1)) for one in secret)
    assert "pass@" not in said and "token=" not in said
    for wrong in ("hf://one", "s3://a/b", "weights.pth"):
        assert "this is no address of weights" in run("weights", "fetch", wrong, code=1)
    offline = run("weights", "fetch", "hf://org/sam2", code=1, HF_HUB_OFFLINE="1")
    assert "HF_HUB_OFFLINE is set" in offline and "models--org--sam2 and the lock file from there" in offline
    closed = run("weights", "fetch", "hf://org/sam2", code=1, HF_ENDPOINT="http://127.0.0.1:1")
    assert "the hub http://127.0.0.1:1 cannot be reached" in closed


def test_a_file_of_a_web_server_is_continued_and_compared(hub: Hub, run, tmp_path, weights):
    import hashlib

    hub.objects["sam.pth"] = weights
    url, digest = f"{hub.url}/plain/sam.pth", hashlib.sha256(weights).hexdigest()
    assert "needs its hash. Give --sha256 HEX" in run("weights", "fetch", url, code=1)
    hub.cut = 100_000
    assert "Run the same command again: it continues" in run("weights", "fetch", url, "--sha256", digest, code=1)
    out = run("weights", "fetch", url, "--sha256", digest.upper())
    assert hub.requests[-1][2] == "bytes=65536-"
    path = next(Path(word) for word in out.split() if word.endswith("sam.pth") and word.startswith("/"))
    assert path.read_bytes() == weights and lock(tmp_path)[url]["files"]["sam.pth"]["sha256"] == digest
    before = len(hub.requests)
    run("weights", "fetch")
    assert len(hub.requests) == before  # it is here
    assert "pins a file with another sha256" in run("weights", "fetch", url, "--sha256", digest[::-1], code=1)
    hub.objects["page.pth"] = b"<html>"
    other = run("weights", "fetch", f"{hub.url}/plain/page.pth", "--sha256", digest[::-1], code=1)
    assert "the file's sha256 is" in other and "error page" in other


def test_addresses_of_a_spec_are_fetched(hub: Hub, run, tmp_path, weights):
    (tmp_path / "a.yaml").write_text(f"distill: {{teacher: [{{pretrained_teacher_model_path: 'hf://{MODEL}'}}]}}")
    run("weights", "fetch", "-e", "a.yaml")
    assert list(lock(tmp_path)) == [f"hf://{MODEL}"]
    assert "cannot read the spec" in run("weights", "fetch", "-e", "b.yaml", code=1)
    (tmp_path / "c.yaml").write_text("wandb: {tags: ['https://a/b.pth']}")
    assert "no field names weights by their address" in run("weights", "fetch", "-e", "c.yaml", code=1)
    (tmp_path / "weights.lock.json").write_text("{")
    assert "weights.lock.json: this lock file cannot be read" in run("weights", "fetch", f"hf://{MODEL}", code=1)


def test_a_task_that_opens_no_teacher_needs_no_teacher(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    spec = load_spec({"distill": {"teacher": [{"pretrained_teacher_model_path": "hf://org/large"}]}})
    assert spec.distill.teacher[0].pretrained_teacher_model_path == "hf://org/large"
    (problem,) = unfetched_weights(spec)
    assert "Run `radioplat weights fetch hf://org/large`" in str(problem) and problem in check(spec)


def test_every_field_of_weights_may_name_an_address():
    """A field of the schema that is named like one of them, and that no task resolves, is named here."""
    teacher = {"ensemble": ["a", "b"]}
    fields = {field.path for field in weights_fields(load_spec({"distill": {"teacher": [teacher]}}))}
    named = {path for path in all_fields() if path.rpartition(".")[2] in WEIGHTS}
    assert {re.sub(r"\[\d\]", "[]", path).removesuffix("[]") for path in fields} == named


def test_entries_of_several_processes_are_all_in_the_lock_file(tmp_path):
    path = tmp_path / "weights.lock.json"
    entries = {f"hf://org/{i}": Entry("org/x", "c", "", {"a": Pin("0" * 64, i)}) for i in range(12)}
    with ProcessPoolExecutor(4) as processes:
        list(processes.map(add_to_lock, [path] * len(entries), entries, entries.values()))
    assert read_lock(path) == entries


@pytest.mark.parametrize("name", ["../../etc/passwd", "/etc/passwd", ""])
def test_a_lock_file_names_no_file_outside(tmp_path, name):
    entry = {
        "repository": "o/n",
        "revision": "c",
        "value": "",
        "files": {name: {"sha256": "0", "bytes": 1}} if name else {},
    }
    (path := tmp_path / "weights.lock.json").write_text(json.dumps({"weights": {"hf://o/n": entry}}))
    with pytest.raises(SpecError, match="this lock file cannot be read"):
        read_lock(path)
