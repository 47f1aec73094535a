"""The cluster launcher's files, against Ray's own schema and validators."""

from __future__ import annotations

import copy
import functools
import re
from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.clusters.published import compute_instance

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
        "REGISTRY", "PROJECT", "FILE_SYSTEM", "CPU_DIGEST", "CUDA_DIGEST"
    }  # fmt: skip
    assert used == {"REGISTRY", "FILE_SYSTEM", "CPU_DIGEST", "CUDA_DIGEST"} | (
        {"PROJECT"} if path.stem == "gcp" else set()
    )
    assert all(word in header for word in used)


@functools.cache
def run_instances():
    """The arguments of EC2's RunInstances, in its own model, which botocore ships."""
    from botocore.session import Session

    return Session().get_service_model("ec2").operation_model("RunInstances").input_shape


def ec2_problems(config: dict) -> list[str]:
    """What it has against a node's configuration."""
    from botocore.validate import ParamValidator

    shape = run_instances()
    found = ParamValidator().validate({"MinCount": 1, "MaxCount": 1} | config, shape)
    return ([found.generate_report()] if found.has_errors() else []) + list(_no_choices(config, shape, ""))


def _no_choices(value, shape, path: str):
    """Values that are none of those that the model lists; botocore leaves that to the server."""
    if shape.type_name == "structure":
        for name, inner in value.items():
            if name in shape.members:  # others are reported already
                yield from _no_choices(inner, shape.members[name], f"{path}.{name}")
    elif shape.type_name == "list":
        for inner in value:
            yield from _no_choices(inner, shape.member, f"{path}[]")
    elif getattr(shape, "enum", None) and value not in shape.enum:
        yield f"{path}: {value}"


def test_ec2_accepts_the_nodes(clusters):
    kinds = yaml.safe_load((clusters / "aws.yaml").read_text())["available_node_types"]
    assert [problem for kind in kinds.values() for problem in ec2_problems(kind["node_config"])] == []
    config = kinds["student"]["node_config"]
    for slip in ({"InstanceTyp": "x"}, {"InstanceType": "g6e.13xlarge"}, {"BlockDeviceMappings": {}}):
        assert ec2_problems(config | slip)
    market = {"MarketType": "spot", "SpotOptions": {"InstanceInterruptionBehavior": "end"}}
    assert ec2_problems(config | {"InstanceMarketOptions": market})


def test_compute_engine_accepts_the_nodes(clusters):
    kinds = yaml.safe_load((clusters / "gcp.yaml").read_text())["available_node_types"]
    for kind in kinds.values():
        jsonschema.validate(kind["node_config"], compute_instance())
    config = kinds["student"]["node_config"]
    for slip in ({"machinetype": "x"}, {"scheduling": [{"preemptible": True}]}, {"disks": [{"bot": True}]},
                 {"scheduling": {"provisioningModel": "CHEAP"}}):  # fmt: skip
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(config | slip, compute_instance())
