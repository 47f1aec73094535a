"""The KubeRay manifests against KubeRay's own CRDs, and what we promise of them."""

from __future__ import annotations

import functools
import ipaddress
import json
import os
from pathlib import Path

import jsonschema
import pytest
import yaml

from tests.clusters.published import schemas
from tests.clusters.test_launcher import check_no_secrets

FILES = ("raycluster", "rayjob", "job", "storage", "network")


@functools.cache
def validator(kind: str) -> jsonschema.protocols.Validator:
    """Of a kind's schema, which is checked itself once: that takes most of a second."""
    schema = schemas()[kind]
    chosen = jsonschema.validators.validator_for(schema)
    chosen.check_schema(schema)
    return chosen(schema)


@pytest.fixture(params=FILES)
def manifest(request, clusters) -> tuple[Path, dict]:
    """A file and its tree."""
    path = clusters / "kuberay" / f"{request.param}.yaml"
    return path, yaml.safe_load(path.read_text())


@pytest.fixture
def cluster(clusters) -> dict:
    """The spec of the RayCluster."""
    return yaml.safe_load((clusters / "kuberay" / "raycluster.yaml").read_text())["spec"]


def test_only_known_fields(manifest):
    path, tree = manifest
    validator(tree["kind"]).validate(tree)
    check_no_secrets(path.read_text())


@pytest.mark.parametrize(
    ("path", "value"),
    [
        (("spec", "headGroupSpec", "template", "spec", "containers", 0, "livenesProbe"), {}),
        (("spec", "autoscalerOptions", "version"), "v3"),
        (("spec", "workerGroupSpecs", 0, "minReplicas"), "0"),
        (("spec", "authOptions", "token"), "abc"),
        (("spec", "headGroupSpec", "template", "spec", "tolerations"), [{"key": 1}]),
        (("spec", "workerGroupSpecs", 0, "groupName"), None),
    ],
)
def test_a_slip_is_seen(clusters, path, value):
    tree = yaml.safe_load((clusters / "kuberay" / "raycluster.yaml").read_text())
    place = tree
    for key in path[:-1]:
        place = place[key]
    place[path[-1]] = value
    with pytest.raises(jsonschema.ValidationError):
        validator("RayCluster").validate(tree)


def test_the_job_runs_on_the_same_cluster(clusters, cluster):
    job = yaml.safe_load((clusters / "kuberay" / "rayjob.yaml").read_text())["spec"]
    assert job["rayClusterSpec"] == cluster
    assert job["shutdownAfterJobFinishes"] and job["backoffLimit"] > 0


def test_a_job_tells_exit_statuses_apart(clusters, cluster):
    tree = yaml.safe_load((clusters / "kuberay" / "job.yaml").read_text())
    rules = tree["spec"]["podFailurePolicy"]["rules"]
    acts = {code: rule["action"] for rule in rules if "onExitCodes" in rule for code in rule["onExitCodes"]["values"]}
    assert acts == {os.EX_TEMPFAIL: "Ignore", 1: "FailJob", 2: "FailJob", 130: "FailJob"}
    assert os.EX_SOFTWARE not in acts and 0 < tree["spec"]["backoffLimit"] <= 5, "a defect is tried a few times"
    pod = tree["spec"]["template"]["spec"]
    assert pod["restartPolicy"] == "Never", "Kubernetes wants it for a podFailurePolicy"
    (container,) = pod["containers"]
    wait = float(container["command"][container["command"].index("--wait") + 1])
    assert 300 <= wait <= 3600, "a head on a new node takes minutes; nothing is waited for for ever"
    secrets = [entry["valueFrom"]["secretKeyRef"] for entry in container["env"] if "valueFrom" in entry]
    assert secrets == [{"name": cluster["authOptions"]["secretName"], "key": "auth_token"}]
    assert container["image"] == cluster["headGroupSpec"]["template"]["spec"]["containers"][0]["image"]
    for slip in (
        {"podFailurePolicy": {"rules": [{"onExitCodes": {"values": [1]}, "acton": "Ignore"}]}},
        {"backofLimit": 1},
    ):
        with pytest.raises(jsonschema.ValidationError):
            validator("Job").validate(tree | {"spec": tree["spec"] | slip})


def groups(cluster: dict) -> dict[str, dict]:
    """Pod specs by role."""
    found = {group["groupName"]: group["template"]["spec"] for group in cluster["workerGroupSpecs"]}
    return found | {"head": cluster["headGroupSpec"]["template"]["spec"]}


def test_roles(cluster):
    pods = groups(cluster)
    assert set(pods) == {"head", "student", "teacher"}
    spot = {role for role, pod in pods.items() if "spot" in json.dumps(pod.get("tolerations", []))}
    assert spot == {"student"}
    assert {role: pod["nodeSelector"]["radioplat/pool"] for role, pod in pods.items()} == {r: r for r in pods}
    named = {}
    for group in cluster["workerGroupSpecs"]:
        # KubeRay hands the value to a shell: unquoted once it must be the JSON of `ray start --resources`.
        shell = json.loads(group["rayStartParams"]["resources"])
        named[group["groupName"]] = json.loads(shell)
        container = group["template"]["spec"]["containers"][0]
        assert container["resources"]["limits"]["nvidia.com/gpu"] == (4 if group["groupName"] == "student" else 1)
        assert group["minReplicas"] == 0
    assert named == {"student": {"radioplat_worker": 4}, "teacher": {"radioplat_teacher": 4}}


def test_every_pod_leaves_in_order_and_keeps_its_results(cluster):
    assert cluster["authOptions"] == {"mode": "token", "secretName": "radioplat-ray-token"}
    for role, pod in groups(cluster).items():
        (container,) = pod["containers"]
        assert container["readinessProbe"] and container["livenessProbe"], role
        command = container["lifecycle"]["preStop"]["exec"]["command"]
        assert command[:2] == ["radioplat", "nodes"]
        if role != "teacher":  # it has nothing to save
            assert float(command[command.index("--seconds") + 1]) < pod["terminationGracePeriodSeconds"]
        volumes = {v["name"]: v for v in pod["volumes"]}
        assert {m["name"] for m in container["volumeMounts"]} == set(volumes)
        assert volumes["shared"]["persistentVolumeClaim"] == {"claimName": "radioplat-shared"}
        assert volumes["shm"]["emptyDir"]["medium"] == "Memory"
        assert pod["securityContext"]["runAsNonRoot"] and pod["securityContext"]["fsGroup"] == 1000
        assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        assert container["securityContext"] == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}
        # The head's autoscaler alone talks to Kubernetes.
        assert pod.get("automountServiceAccountToken", True) is (role == "head")
        assert container["image"].startswith("REGISTRY/radioplat-") and ":" in container["image"]


def allowed(rules: list[dict], port: int, **labels: str) -> bool:
    """Whether a rule without an address lets pods with these labels through."""
    for rule in rules:
        ports = [entry["port"] for entry in rule.get("ports", [])]
        for peer in rule.get("to", rule.get("from", [])):
            wanted = peer.get("podSelector", {}).get("matchLabels", {})
            if "ipBlock" not in peer and (not ports or port in ports) and wanted.items() <= labels.items():
                return True
    return False


def test_pods_are_reached_by_each_other_and_by_those_who_submit(clusters):
    policy = yaml.safe_load((clusters / "kuberay" / "network.yaml").read_text())["spec"]
    node = {"ray.io/is-ray-node": "yes"}
    assert policy["podSelector"] == {"matchLabels": node} and set(policy["policyTypes"]) == {"Ingress", "Egress"}
    for rules in (policy["ingress"], policy["egress"]):
        assert all(allowed(rules, port, **node) for port in (6379, 8265, 10001, 30123))
    assert allowed(policy["ingress"], 8265, app="job") and not allowed(policy["ingress"], 6379, app="job")
    assert not allowed(policy["egress"], 6379, app="database")
    (block,) = [peer["ipBlock"] for rule in policy["egress"] for peer in rule["to"] if "ipBlock" in peer]
    hidden = [ipaddress.ip_network(net) for net in block["except"]]
    assert any(ipaddress.ip_address("169.254.169.254") in net for net in hidden), "the node's own credentials"


def test_the_commands_are_ours(cluster):
    """preStop hooks are parsed by the real command line."""
    from radioplat.cli.parser import build_parser

    parser = build_parser("radioplat")
    for pod in groups(cluster).values():
        command = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        assert command[0] == "radioplat" and vars(parser.parse_args(command[1:])), "or it exits with status 2"
