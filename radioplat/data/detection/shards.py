"""Read detection shards: WebDataset tars whose images have a ``.json`` sidecar with boxes.

A sidecar contains ``boxes`` (``[[left, top, right, bottom], ...]`` in pixels) and ``labels`` (a number or a class name
for each), optionally ``crowd`` and ``area``; or ``annotations`` in COCO's form. An empty list means that the image
shows no object; an image without either field is not annotated and is left out.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from radioplat.data.detection.boxes import Boxes, Faults, clean_boxes, four_numbers
from radioplat.data.detection.coco import entry_boxes
from radioplat.data.detection.detection_set import DetectionSet, Picture
from radioplat.data.scan.shard import scan_tar
from radioplat.data.scan.tar import Member
from radioplat.data.storage.files import absolute, list_files
from radioplat.data.storage.read_ahead import Window
from radioplat.errors import DataError


def read_detection_shards(
    root_dir: str, classes: Sequence[str], where: str = "", image_extension: str | None = None
) -> DetectionSet:
    """Read all tars below ``root_dir``; no pixel is decoded.

    Args:
        classes: names; a number in a sidecar is an index into it.
        where: the spec field, for messages.
        image_extension: of a sample's image; see :func:`scan_tar`.

    Raises:
        DataError: the folder does not exist or contains no usable image.
    """
    root = absolute(root_dir)
    try:
        shards = list_files(root, lambda name: name.endswith(".tar"))
    except OSError as error:
        raise DataError(f"{root} cannot be read: {error.strerror or error}", where=where) from None
    dataset = DetectionSet(tuple(classes), tuple(range(len(classes))))
    labels = {name: i for i, name in enumerate(classes)} | {i: i for i in range(len(classes))}
    for name, _ in shards:
        _read_shard(f"{root}/{name}", labels, dataset, image_extension)
    if not dataset.pictures:
        hint = f"{len(shards)} tar files; faults: {dataset.faults}."
        raise DataError(f"{root} contains no usable image with boxes", where=where, hint=hint)
    return dataset


def _read_shard(path: str, labels: dict[Any, int], dataset: DetectionSet, image_extension: str | None) -> None:
    scan = scan_tar(path, image_extension)
    for fault in scan.faults:
        dataset.faults.add(fault.reason, f"{path}: {fault.key} {fault.detail}".rstrip())
    if not scan.rows.num_rows:
        return
    columns = [scan.rows[name].to_pylist() for name in ("key", "offset", "length", "width", "height")]
    for key, offset, length, width, height, content in zip(*columns, _contents(path, scan.sidecars), strict=True):
        boxes = _sidecar_boxes(content, labels, dataset.faults, f"{path}: {key}")
        if boxes is None:
            continue
        inside = clean_boxes(boxes, width, height, dataset.faults, f"{path}: {key}")
        if not len(inside):
            dataset.faults.add("empty_image", f"{path}: {key}")
        dataset.pictures.append(Picture(key, path, offset, length, width, height, inside, len(dataset.pictures)))


def _contents(path: str, sidecars: list[Member | None]) -> list[Any]:
    """Return the content of each JSON sidecar; None where there is none."""
    contents: list[Any] = [None] * len(sidecars)
    try:
        window = Window(path)
        for number, member in enumerate(sidecars):
            if member is not None:
                contents[number] = json.loads(window.read(member.offset, member.size))
    except (OSError, ValueError):
        return contents  # the scan has just read this file; the remaining images count as without boxes
    return contents


def _sidecar_boxes(content: Any, labels: dict[Any, int], faults: Faults, item: str) -> Boxes | None:
    content = content if isinstance(content, dict) else {}
    if isinstance(content.get("annotations"), list):
        return entry_boxes(content["annotations"], labels, faults, item)
    corners, names = content.get("boxes"), content.get("labels")
    if not isinstance(corners, list):
        faults.add("no_boxes", item)
        return None
    columns = [names if names is not None or corners else []]
    columns += [content.get(name) for name in ("crowd", "area") if content.get(name) is not None]
    if any(not isinstance(column, list) or len(column) != len(corners) for column in columns):
        faults.add("bad_sidecar", f"{item}: labels, crowd and area need one entry a box")
        return None
    crowd, area = content.get("crowd") or [False] * len(corners), content.get("area") or [None] * len(corners)
    entries = []
    for corner, *rest in zip(corners, columns[0], crowd, area, strict=True):
        box = four_numbers(corner)
        sides = None if box is None else [box[0], box[1], box[2] - box[0], box[3] - box[1]]
        entries.append(dict(zip(("category_id", "iscrowd", "area"), rest, strict=True)) | {"bbox": sides})
    return entry_boxes(entries, labels, faults, item)
