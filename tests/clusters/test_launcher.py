"""The cluster launcher's files, against Ray's own schema and validators."""

from __future__ import annotations

import copy
import re
from pathlib import Path

import pytest
import yaml

CLOUDS = ("aws", "gcp")


def validated(tree: dict) -> dict:
    """As ``ray up`` reads it.

    Raises:
        jsonschema.ValidationError, ValueError: Ray refuses it.
    """
    from ray.autoscaler._private.util import prepare_config, validate_config

    prepared = prepare_config(copy.deepcopy(tree))
    validate_config(prepared)
    return prepared


@pytest.fixture(params=CLOUDS)
def launcher(request, clusters) -> tuple[Path, dict]:
    """A file and its tree."""
    path = clusters / f"{request.param}.yaml"
    return path, yaml.safe_load(path.read_text())


def test_ray_accepts_it(launcher):
    path, tree = launcher
    prepared = validated(tree)
    assert prepared["provider"]["type"] == path.stem
    assert {name: kind["max_workers"] for name, kind in prepared["available_node_types"].items()} == {
        "head": 0,
        "student": 8,
        "teacher": 2,
    }


@pytest.mark.parametrize("broken", [{"max_wrokers": 3}, {"head_node_type": "no such"}, {"upscaling_speed": "fast"}])
def test_ray_refuses_what_is_wrong(launcher, broken):
    with pytest.raises(Exception, match="max_wrokers|head_node_type|fast"):
        validated(launcher[1] | broken)


def test_roles(launcher):
    """Only students are on machines that can be taken away, and every role has resources of its own."""
    path, tree = launcher
    kinds = tree["available_node_types"]
    spot = {name for name, kind in kinds.items() if re.search("spot", str(kind["node_config"]), re.IGNORECASE)}
    assert spot == {"student"}
    named = {name: {r for r in kind["resources"] if r.startswith("radioplat")} for name, kind in kinds.items()}
    assert named == {"head": set(), "student": {"radioplat_worker"}, "teacher": {"radioplat_teacher"}}
    assert kinds["head"]["resources"]["CPU"] == 0
    assert any(f"radioplat nodes watch --cloud {path.stem}" in c for c in tree["worker_start_ray_commands"])


def test_closed_to_strangers(launcher):
    path, tree = launcher
    head = " ".join(tree["head_start_ray_commands"])
    assert "--dashboard-host=127.0.0.1" in head and "--ray-client-server" not in head
    assert any("RAY_AUTH_MODE=token" in option for option in tree["docker"]["run_options"])
    assert tree["file_mounts"] == {"~/.ray/auth_token": "~/.ray/auth_token"}
    check_no_secrets(path.read_text())


def check_no_secrets(text: str) -> None:
    """Keys, tokens and passwords stand nowhere; what has their name is a reference."""
    assert not re.search(r"AKIA[0-9A-Z]{16}|-----BEGIN|[0-9a-f]{40}|ghp_|hf_[A-Za-z]{8}", text)
    assert not re.search(r"(?i)(password|secret_?key|api_?key)\s*[:=]", text)


def test_aws_metadata_needs_a_token(clusters):
    tree = yaml.safe_load((clusters / "aws.yaml").read_text())
    for kind in tree["available_node_types"].values():
        assert kind["node_config"]["MetadataOptions"]["HttpTokens"] == "required"


def test_what_must_be_replaced_is_said(launcher):
    path, tree = launcher
    header = path.read_text().partition("cluster_name")[0]
    used = {word for word in re.findall(r"\b[A-Z][A-Z_]{5,}\b", yaml.safe_dump(tree))} & {
        "REGISTRY", "PROJECT", "FILE_SYSTEM"
    }  # fmt: skip
    assert used == {"REGISTRY", "FILE_SYSTEM"} | ({"PROJECT"} if path.stem == "gcp" else set())
    assert all(word in header for word in used)
