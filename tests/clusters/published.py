"""Published schemas: types, names, choices and what must be there, without descriptions.

- ``ray.io_*.json.gz``: version v1 of the CRDs of KubeRay v1.7.0 (github.com/ray-project/kuberay,
  helm-chart/kuberay-operator/crds).
- ``compute_instance.json.gz``: an instance of Compute Engine, of the discovery document compute.v1.json in
  google-api-python-client 2.202.0 (googleapiclient/discovery_cache/documents).
- ``skypilot.json.gz``: ``get_task_schema()`` and ``get_resources_schema()`` of ``sky.utils.schemas``, 0.14.1, as
  ``task`` and ``resources``.
- ``kubernetes_job.json.gz``: ``V1Job.model_json_schema()`` of the Python client of Kubernetes, 37.0.2.

All are under the Apache licence, 2.0. ``python -m tests.clusters.published FOLDER`` writes those anew whose sources lie
in the folder, the last two as skypilot.json and v1_job.json.
"""

from __future__ import annotations

import functools
import gzip
import json
import sys
from pathlib import Path
from typing import Any

import yaml

HERE = Path(__file__).parent
CRDS = {"RayCluster": "ray.io_rayclusters", "RayJob": "ray.io_rayjobs"}
COMPUTE, JOB, SKYPILOT = "compute_instance", "kubernetes_job", "skypilot"
_INNER = ("items", "additionalProperties")
_EITHER, _OPEN = "x-kubernetes-int-or-string", "x-kubernetes-preserve-unknown-fields"


@functools.cache
def schemas() -> dict[str, dict]:
    """By kind; of a volume claim, the one that pods' ephemeral volumes have."""
    found = {kind: _read(file) for kind, file in CRDS.items()}
    claim = found["RayCluster"]["properties"]["spec"]["properties"]["headGroupSpec"]["properties"]["template"]
    for name in ("spec", "volumes", "items", "ephemeral", "volumeClaimTemplate"):
        claim = claim[name] if name == "items" else claim["properties"][name]
    top = {name: {"type": "string"} for name in ("apiVersion", "kind")}
    found["PersistentVolumeClaim"] = claim | {"properties": claim["properties"] | top}
    for each in found.values():
        each["properties"]["metadata"] = {"type": "object", "required": ["name"]}
        each["required"] = ["apiVersion", "kind", "metadata", "spec"]
    found["Job"] = _read(JOB)
    return {kind: closed(each) for kind, each in found.items()}


@functools.cache
def compute_instance() -> dict:
    """Of Compute Engine."""
    return _read(COMPUTE)


@functools.cache
def skypilot() -> dict[str, dict]:
    """Of a file for SkyPilot, by ``task`` and ``resources``."""
    return _read(SKYPILOT)


def closed(schema: Any) -> Any:
    """A schema that refuses what a server would drop in silence: fields that it does not have."""
    if not isinstance(schema, dict):
        return schema
    if schema.get(_EITHER):
        return {"type": ["integer", "string"]}
    found = schema | {name: closed(schema[name]) for name in _INNER if name in schema}
    if "properties" in schema:
        found["properties"] = {name: closed(inner) for name, inner in schema["properties"].items()}
        if "additionalProperties" not in schema and not schema.get(_OPEN):
            found["additionalProperties"] = False
    return found


def stripped(schema: dict) -> dict:
    """What a validation needs."""
    found = {name: schema[name] for name in ("type", "required", "enum", _EITHER, _OPEN) if name in schema}
    found |= {name: stripped(schema[name]) for name in _INNER if isinstance(schema.get(name), dict)}
    if "$ref" in schema:
        found["$ref"] = f"#/$defs/{schema['$ref'].rpartition('/')[2]}"
    if "anyOf" in schema:
        found["anyOf"] = [stripped(inner) for inner in schema["anyOf"]]
    if schema.get("additionalProperties") is False:
        found["additionalProperties"] = False
    if schema.get("format") in ("int64", "uint64") and schema["type"] == "string":  # JSON's numbers are doubles
        found["type"] = ["string", "integer"]
    if "properties" in schema:
        found["properties"] = {name: stripped(inner) for name, inner in schema["properties"].items()}
    return found


def _reachable(schemas: dict[str, dict], start: str) -> dict[str, dict]:
    """``start`` and what it refers to."""
    found: dict[str, dict] = {}
    look = [start]
    while look:
        name = look.pop()
        if name not in found:
            found[name] = closed(stripped(schemas[name]))
            look += [part.partition('"')[0] for part in json.dumps(found[name]).split("#/$defs/")[1:]]
    return found


def _read(file: str) -> dict:
    return json.loads(gzip.decompress((HERE / f"{file}.json.gz").read_bytes()))


def _write(file: str, tree: dict) -> None:
    text = json.dumps(tree, separators=(",", ":"), sort_keys=True)
    (HERE / f"{file}.json.gz").write_bytes(gzip.compress(text.encode(), 9, mtime=0))


def main(folder: Path) -> None:
    """Write the files anew."""
    for file in CRDS.values():
        if (source := folder / f"{file}.yaml").exists():
            versions = yaml.safe_load(source.read_text())["spec"]["versions"]
            _write(file, stripped(next(v for v in versions if v["name"] == "v1")["schema"]["openAPIV3Schema"]))
    if (source := folder / "compute.v1.json").exists():
        found = _reachable(json.loads(source.read_text())["schemas"], "Instance")
        _write(COMPUTE, {"$ref": "#/$defs/Instance", "$defs": found})
    if (source := folder / "skypilot.json").exists():
        _write(SKYPILOT, json.loads(source.read_text()))
    if (source := folder / "v1_job.json").exists():
        tree = json.loads(source.read_text())
        _write(JOB, stripped(tree) | {"$defs": {name: stripped(inner) for name, inner in tree["$defs"].items()}})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
