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

FILES = ("raycluster", "rayjob", "job", "storage")


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
    assert job["shutdownAfterJobFinishes"]
    assert job["backoffLimit"] == 0, "KubeRay would retry a typo on that many new clusters"


def test_the_page_shows_the_rules_of_the_job(clusters):
    page = (clusters.parent / "docs" / "how_to" / "clusters.md").read_text()
    shown = page.partition("tells Kubernetes so:\n\n```\n")[2].partition("```")[0].removeprefix("spec:\n")
    assert "podFailurePolicy" in shown and shown in (clusters / "kuberay" / "job.yaml").read_text()


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
        assert container["image"].startswith("REGISTRY/radioplat-") and ":" in container["image"]


def templates(clusters) -> dict[str, dict]:
    """Pod templates of all manifests, by name; those of rayjob.yaml's cluster are raycluster.yaml's."""
    trees = {name: yaml.safe_load((clusters / "kuberay" / f"{name}.yaml").read_text()) for name in FILES}
    cluster = trees["raycluster"]["spec"]
    found = {group["groupName"]: group["template"] for group in cluster["workerGroupSpecs"]}
    found |= {"head": cluster["headGroupSpec"]["template"], "job": trees["job"]["spec"]["template"]}
    return found | {"rayjob": trees["rayjob"]["spec"]["submitterPodTemplate"]}


def test_no_pod_has_more_rights_than_it_needs(clusters, cluster):
    """The restricted Pod Security Standard of Kubernetes, in full; its token where the autoscaler needs it."""
    contexts = {"autoscaler": cluster["autoscalerOptions"]["securityContext"]}
    for name, template in templates(clusters).items():
        pod = template["spec"]
        user = {
            "runAsNonRoot": True,
            "runAsUser": 1000,
            "runAsGroup": 1000,
            "seccompProfile": {"type": "RuntimeDefault"},
        }
        volumes = {"fsGroup": 1000, "fsGroupChangePolicy": "OnRootMismatch"}
        assert pod["securityContext"] == user | (volumes if pod.get("volumes") else {}), name
        assert pod["automountServiceAccountToken"] is (name == "head"), name
        assert not {"hostNetwork", "hostPID", "hostIPC", "serviceAccountName"} & set(pod)
        assert all(set(volume) & {"persistentVolumeClaim", "emptyDir"} for volume in pod.get("volumes", []))
        contexts |= {f"{name} {container['name']}": container["securityContext"] for container in pod["containers"]}
    assert len(contexts) == 6
    for name, context in contexts.items():
        assert context == {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}, name


OPERATOR = {"app.kubernetes.io/name": "kuberay-operator"}
ANYWHERE, STORE, API, METADATA = "10.1.2.3", "52.216.1.1", "10.0.0.1", "169.254.169.254"


@pytest.fixture
def policies(clusters) -> list[dict]:
    """The specs of network.yaml."""
    trees = list(yaml.safe_load_all((clusters / "kuberay" / "network.yaml").read_text()))
    assert {(tree["apiVersion"], tree["kind"]) for tree in trees} == {("networking.k8s.io/v1", "NetworkPolicy")}
    return [tree["spec"] for tree in trees]


def selects(selector: dict, labels: dict) -> bool:
    assert set(selector) <= {"matchLabels"}
    return selector.get("matchLabels", {}).items() <= labels.items()


def reaches(policies: list[dict], here: dict | str, there: dict | str, port: int, protocol: str = "TCP") -> bool:
    """Whether a connection is let through: pods are given by labels, other hosts by address."""

    def passes(side: str, pod: dict | str, peer: dict | str) -> bool:
        if isinstance(pod, str):
            return True
        ours = [p for p in policies if selects(p["podSelector"], pod) and side in p["policyTypes"]]
        rules = [rule for policy in ours for rule in policy.get(side.lower(), [])]
        return not ours or any(matches(rule, "from" if side == "Ingress" else "to", peer) for rule in rules)

    def matches(rule: dict, peers: str, peer: dict | str) -> bool:
        ports = [(p["protocol"], p["port"]) for p in rule.get("ports", [])]
        return (not ports or (protocol, port) in ports) and (
            peers not in rule or any(is_one(each, peer) for each in rule[peers])
        )

    def is_one(each: dict, peer: dict | str) -> bool:
        if isinstance(peer, str):
            block, address = each.get("ipBlock"), ipaddress.ip_address(peer)
            inside = block and address in ipaddress.ip_network(block["cidr"])
            return bool(inside) and not any(address in ipaddress.ip_network(e) for e in block.get("except", []))
        # An operator is in another namespace: a selector of pods alone does not reach there.
        return (
            "podSelector" in each
            and ("namespaceSelector" in each or peer != OPERATOR)
            and selects(each["podSelector"], peer)
        )

    return passes("Egress", here, there) and passes("Ingress", there, here)


def test_who_reaches_whom(clusters, policies):
    labels = {name: template["metadata"]["labels"] for name, template in templates(clusters).items()}
    ray = {"head": labels["head"] | {"ray.io/node-type": "head"}} | {n: labels[n] for n in ("student", "teacher")}
    submitters, stranger = [labels["job"], labels["rayjob"]], {"app": "stranger"}
    for pod in ray.values():
        assert all(reaches(policies, pod, other, port) for other in ray.values() for port in (6379, 52365, 40000))
        for other in (*submitters, OPERATOR):
            assert reaches(policies, other, pod, 8265) and not reaches(policies, other, pod, 6379)
        for port in (6379, 8265, 10001, 52365, 40000):
            assert not reaches(policies, stranger, pod, port) and not reaches(policies, ANYWHERE, pod, port)
        assert not any(reaches(policies, pod, other, 8265) for other in (*submitters, stranger, OPERATOR))
        assert reaches(policies, pod, STORE, 443) and not reaches(policies, pod, STORE, 22)
        assert reaches(policies, pod, API, 6443) is (pod is ray["head"])
    for pod in (*ray.values(), *submitters):
        assert reaches(policies, pod, ANYWHERE, 53, "UDP") and reaches(policies, pod, METADATA, 53, "UDP"), "GKE's DNS"
        assert not reaches(policies, pod, METADATA, 80) and not reaches(policies, pod, METADATA, 443)
        assert reaches(policies, pod | {"radioplat/metadata": "true"}, METADATA, 80)
    for pod in submitters:
        assert not reaches(policies, pod, STORE, 443) and not reaches(policies, pod, API, 6443)
        assert not reaches(policies, stranger, pod, 8265)


def test_policies_have_only_known_fields(policies):
    """The rules by the schema that KubeRay's CRD has of them."""
    rules = schemas()["RayCluster"]["properties"]["spec"]["properties"]["networkPolicy"]["properties"]["head"]
    rules = rules["properties"]
    for policy in policies:
        assert set(policy) <= {"podSelector", "policyTypes", "ingress", "egress"}
        jsonschema.validate(policy.get("ingress", []), rules["ingressRules"])
        jsonschema.validate(policy["egress"], rules["egressRules"])
    with pytest.raises(jsonschema.ValidationError):
        jsonschema.validate([{"ports": [{"protocl": "TCP"}]}], rules["egressRules"])


def test_the_commands_are_ours(cluster):
    """preStop hooks are parsed by the real command line."""
    from radioplat.cli.parser import build_parser

    parser = build_parser("radioplat")
    for pod in groups(cluster).values():
        command = pod["containers"][0]["lifecycle"]["preStop"]["exec"]["command"]
        assert command[0] == "radioplat" and vars(parser.parse_args(command[1:])), "or it exits with status 2"
