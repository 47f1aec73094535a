"""Sidecars of an image: the fields of its JSON and of its ``.cls``."""

from __future__ import annotations

import json
from typing import Any

from radioplat.data.scan.names import shown_name

_scan_json = json.JSONDecoder().scan_once  # type: ignore[attr-defined]  # CPython has it, typeshed does not


def parse_json(data: bytes) -> Any:
    """Parse like `json.loads`, without the overhead around its C scanner."""
    try:
        text = data.decode()
        content, end = _scan_json(text, 0)
        if end == len(text) or text[end:].isspace():
            return content
    except (StopIteration, ValueError):
        pass
    return json.loads(data)


def fields_of(content: Any) -> dict[str, Any]:
    """Return ``hash``, ``caption`` (True), ``given_label`` and ``label_name`` of a parsed JSON sidecar, if it has them.

    Raises:
        ValueError: it is no object.
    """
    if not isinstance(content, dict):
        raise ValueError("a JSON object is expected")
    fields: dict[str, Any] = {}
    get = content.get
    for name in ("sha256", "md5", "uid"):
        if (digest := get(name)) is not None and digest != "":
            fields["hash"] = shown_name(str(digest))
            break
    if isinstance(get("caption"), str):
        fields["caption"] = True
    for name in ("label", "id"):
        if (label := get(name)) is not None:
            fields |= label_fields(label)
            break
    if isinstance(get("label_name"), str):
        fields["label_name"] = shown_name(content["label_name"])
    return fields


def label_fault(content: dict[str, Any]) -> str | None:
    """Describe an invalid label; None if it is valid or absent. A negative number means unlabelled, as null does."""
    for name in ("label", "id"):
        if (label := content.get(name)) is not None:
            if isinstance(label, str) or (type(label) is int and abs(label) < 2**63):  # a bool is an int, too
                return None
            return f"{name} is {json.dumps(label)[:40]}, neither a whole number of 63 bits nor text"
    return None


def label_fields(value: Any) -> dict[str, Any]:
    """Return the field of a label: a number is the label itself, other text is its name."""
    if isinstance(value, str):
        number = value.removeprefix("-")
        value = int(value) if number.isascii() and number.isdigit() and len(number) < 19 else value
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63:
        return {"given_label": value} if value >= 0 else {}
    return {"label_name": shown_name(value)} if isinstance(value, str) and value else {}
