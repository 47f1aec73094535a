"""``kuberay_fields.yaml`` as JSON schemas."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import yaml

_SIMPLE = {
    "any": {},
    "map": {"type": "object"},
    "int or string": {"type": ["integer", "string"]},
    **{name: {"type": name} for name in ("string", "integer", "number", "boolean")},
}


def schemas() -> dict[str, dict]:
    """By kind."""
    listed = yaml.safe_load((Path(__file__).parent / "kuberay_fields.yaml").read_text())
    return {kind: schema(entry) for kind, entry in listed.items() if not kind.startswith("_")}


def schema(entry: Any) -> dict:
    """Of one entry."""
    if isinstance(entry, list):
        return {"type": "array", "items": schema(entry[0])}
    if isinstance(entry, dict):
        return {
            "type": "object",
            "additionalProperties": False,
            "required": [name[:-1] for name in entry if name.endswith("!")],
            "properties": {name.rstrip("!"): schema(inner) for name, inner in entry.items()},
        }
    return _SIMPLE.get(entry) or ({} if entry == "any" else {"enum": entry.split(" | ")})


def closed(crd: dict) -> dict:
    """A CRD's schema that refuses what the API server would silently drop: fields that it does not have."""
    if not isinstance(crd, dict):
        return crd
    found = {key: closed(value) if isinstance(value, dict) else value for key, value in crd.items()}
    if isinstance(crd.get("properties"), dict):
        found["properties"] = {name: closed(inner) for name, inner in crd["properties"].items()}
        if "additionalProperties" not in crd and not crd.get("x-kubernetes-preserve-unknown-fields"):
            found["additionalProperties"] = False
    if crd.get("x-kubernetes-int-or-string"):
        found = {"type": ["integer", "string"]}
    return found
