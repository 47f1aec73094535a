"""Detection shards: WebDataset tars whose images have a ``.json`` sidecar with boxes.

A sidecar holds ``boxes`` (``[[left, top, right, bottom], ...]`` in pixels) and ``labels`` (a number or a class's name
for each), with ``crowd`` and ``area`` beside them if known; or ``annotations`` in COCO's form. An empty list says that
the image shows no object; a sidecar without either says nothing, and its image is left out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from radioplat.data.detection.boxes import Boxes, Faults, clean_boxes, four_numbers
from radioplat.data.detection.coco import entry_boxes
from radioplat.data.detection.images import DetectionSet, Picture
from radioplat.data.scan.shard import MAX_SIDECAR_BYTES, scan_tar, split_name
from radioplat.data.scan.tar import Member, walk_tar
from radioplat.data.storage.files import absolute, list_files
from radioplat.data.storage.read_ahead import Window
from radioplat.errors import DataError


def read_detection_shards(root_dir: str, classes: Sequence[str], where: str = "") -> DetectionSet:
    """Read all tars below ``root_dir``; no pixel is decoded.

    Args:
        classes: names; numbers in sidecars are places in it.
        where: the spec field, for messages.

    Raises:
        DataError: there is no such folder, or no image in it that can be used.
    """
    root = absolute(root_dir)
    try:
        shards = list_files(root, lambda name: name.endswith(".tar"))
    except OSError as error:
        raise DataError(f"{root} cannot be read: {error.strerror or error}", where=where) from None
    found = DetectionSet(tuple(classes), tuple(range(len(classes))))
    labels = {name: i for i, name in enumerate(classes)} | {i: i for i in range(len(classes))}
    for name, _ in shards:
        _read_shard(f"{root}/{name}", labels, found)
    if not found.pictures:
        hint = f"{len(shards)} tar files; faults: {found.faults}."
        raise DataError(f"{root} holds no image with boxes that can be used", where=where, hint=hint)
    return found


def _read_shard(path: str, labels: dict[Any, int], found: DetectionSet) -> None:
    scan = scan_tar(path)
    for fault in scan.faults:
        found.faults.add(fault.reason, f"{path}: {fault.key} {fault.detail}".rstrip())
    if not scan.rows.num_rows:
        return
    sidecars = _sidecars(path)
    columns = ("key", "offset", "length", "width", "height")
    for key, offset, length, width, height in zip(*(scan.rows[c].to_pylist() for c in columns), strict=True):
        boxes = _sidecar_boxes(sidecars.get(key), labels, found.faults, f"{path}: {key}")
        if boxes is None:
            continue
        inside = clean_boxes(boxes, width, height, found.faults, f"{path}: {key}")
        if not len(inside):
            found.faults.add("empty_image", f"{path}: {key}")
        found.pictures.append(Picture(key, path, offset, length, width, height, inside, len(found.pictures)))


def _sidecars(path: str) -> dict[str, Any]:
    """Content by key; a sidecar that :func:`scan_tar` has already named as bad is left out."""
    found: dict[str, Any] = {}
    try:
        window = Window(path)
        for member in walk_tar(window):
            if not isinstance(member, Member):
                continue
            key, extension = split_name(member.name)
            if extension != "json" or member.kind != "file" or member.size > MAX_SIDECAR_BYTES:
                continue
            try:
                found.setdefault(key, json.loads(window.read(member.offset, member.size)))
            except (ValueError, RecursionError):
                continue
    except OSError:
        return found  # it was there a moment ago; its images count as without boxes
    return found


def _sidecar_boxes(content: Any, labels: dict[Any, int], faults: Faults, what: str) -> Boxes | None:
    content = content if isinstance(content, dict) else {}
    if isinstance(content.get("annotations"), list):
        return entry_boxes(content["annotations"], labels, faults, what)
    corners, names = content.get("boxes"), content.get("labels")
    if not isinstance(corners, list):
        faults.add("no_boxes", what)
        return None
    columns = [names if names is not None or corners else []]
    columns += [content.get(name) for name in ("crowd", "area") if content.get(name) is not None]
    if any(not isinstance(column, list) or len(column) != len(corners) for column in columns):
        faults.add("bad_sidecar", f"{what}: labels, crowd and area need one entry a box")
        return None
    crowd, area = content.get("crowd") or [False] * len(corners), content.get("area") or [None] * len(corners)
    entries = []
    for corner, *rest in zip(corners, columns[0], crowd, area, strict=True):
        box = four_numbers(corner)
        sides = None if box is None else [box[0], box[1], box[2] - box[0], box[3] - box[1]]
        entries.append(dict(zip(("category_id", "iscrowd", "area"), rest, strict=True)) | {"bbox": sides})
    return entry_boxes(entries, labels, faults, what)
