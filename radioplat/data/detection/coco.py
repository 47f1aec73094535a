"""Read a COCO-format data set: one JSON file of annotations and a folder of images (cocodataset.org, Data format)."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

from radioplat.data.detection.boxes import Boxes, Faults, clean_boxes, four_numbers
from radioplat.data.detection.detection_set import DetectionSet, Picture
from radioplat.data.images.headers import header_at
from radioplat.data.storage.files import absolute, read_range, stat_file
from radioplat.data.storage.read_ahead import Window
from radioplat.errors import DataError

_FORM = "It needs the lists images, annotations and categories of COCO's format."


def read_coco(annotations: str, images_dir: str, where: str = "") -> DetectionSet:
    """Read a COCO-format split; no pixel is decoded.

    Classes are the file's categories by ascending id. An unusable image or box is left out and counted in the
    result's ``faults``; an image without objects stays.

    Args:
        annotations: the JSON file; local or remote.
        images_dir: the folder that the images' ``file_name`` is relative to.
        where: the spec field, for messages.

    Raises:
        DataError: the file cannot be read or is not of this format, or no image can be used.
    """
    annotations, images_dir = absolute(annotations), absolute(images_dir)
    content = _read(annotations, where)
    classes = _categories(content["categories"], annotations, where)
    dataset = DetectionSet(tuple(classes.values()), tuple(classes))
    boxes = _boxes_by_image(content, {number: label for label, number in enumerate(classes)}, dataset.faults)
    image_ids: set[int] = set()
    for entry in content["images"]:
        if not _is_image(entry):
            dataset.faults.add("bad_image", str(entry)[:80])
        elif entry["id"] in image_ids:
            dataset.faults.add("duplicate_image", f"id {entry['id']}")
        else:
            image_ids.add(entry["id"])
            picture = _picture(entry, images_dir, boxes[entry["id"]], dataset.faults)
            if picture is not None:
                dataset.pictures.append(picture)
    if not dataset.pictures:
        hint = f"Faults: {dataset.faults}. Images are read from {images_dir}."
        raise DataError(f"{annotations} names no image that can be used", where=where, hint=hint)
    return dataset


def entry_boxes(entries: Sequence[Any], labels: dict[Any, int], faults: Faults, item: str) -> Boxes:
    """Convert annotations in COCO's form (``bbox`` is left, top, width, height; ``area`` and ``iscrowd`` optional).

    Args:
        labels: class by ``category_id`` or by ``category`` (a name).
        faults: unusable entries are counted here.
        item: the image's name, for ``faults``.
    """
    corners, classes, crowd, areas = [], [], [], []
    for entry in entries:
        box = four_numbers(entry.get("bbox")) if isinstance(entry, dict) else None
        if box is None:
            faults.add("bad_box", item)
            continue
        key = entry.get("category_id", entry.get("category"))
        label = labels.get(key) if isinstance(key, (int, str)) and not isinstance(key, bool) else None
        if label is None:
            faults.add("unknown_class", f"{item}: {key!r}")
            continue
        x, y, w, h = box
        corners.append((x, y, x + w, y + h))
        classes.append(label)
        crowd.append(bool(entry.get("iscrowd", False)))
        area = entry.get("area")
        known = isinstance(area, (int, float)) and not isinstance(area, bool) and 0 < area < 1e18
        areas.append(area if known else w * h)
    return Boxes.of(corners, classes, crowd, areas)


def _read(path: str, where: str) -> dict[str, Any]:
    try:
        content = json.loads(read_range(path, 0, stat_file(path).size))
    except OSError as error:
        hint = "Name the JSON file that describes the images."
        raise DataError(f"{path} cannot be read: {error.strerror or error}", where=where, hint=hint) from None
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not JSON: {error}", where=where, hint=_FORM) from None
    lists = ("images", "annotations", "categories")
    missing = [name for name in lists if not isinstance(content, dict) or not isinstance(content.get(name), list)]
    if missing:
        raise DataError(f"{path} has no list {', '.join(missing)}", where=where, hint=_FORM)
    return content


def _categories(entries: list[Any], path: str, where: str) -> dict[int, str]:
    """Return the category names by id, ascending."""
    names: dict[int, str] = {}
    for entry in entries:
        number = entry.get("id") if isinstance(entry, dict) else None
        if not isinstance(number, int) or isinstance(number, bool) or number in names:
            hint = "Each category needs a unique integer id."
            raise DataError(f"{path}: category {str(entry)[:80]} cannot be used", where=where, hint=hint)
        names[number] = str(entry.get("name", number))
    if not names:
        raise DataError(f"{path} has no categories", where=where, hint=_FORM)
    return dict(sorted(names.items()))


def _boxes_by_image(content: dict[str, Any], labels: dict[int, int], faults: Faults) -> dict[int, Boxes]:
    known = {entry["id"] for entry in content["images"] if _is_image(entry)}
    entries = defaultdict(list)
    for entry in content["annotations"]:
        number = entry.get("image_id") if isinstance(entry, dict) else None
        if not isinstance(number, int) or number not in known:
            faults.add("unknown_image", f"annotation of image {number!r}")
        else:
            entries[number].append(entry)
    boxes = {number: entry_boxes(of_image, labels, faults, f"image {number}") for number, of_image in entries.items()}
    return defaultdict(Boxes.none, boxes)


def _is_image(entry: Any) -> bool:
    return (
        isinstance(entry, dict)
        and isinstance(entry.get("id"), int)
        and isinstance(entry.get("file_name"), str)
        and ".." not in entry["file_name"].split("/")
    )


def _picture(entry: dict[str, Any], images_dir: str, boxes: Boxes, faults: Faults) -> Picture | None:
    name = entry["file_name"]
    path = f"{images_dir}/{name.lstrip('/')}"
    try:
        window = Window(path)
        header = header_at(window.read, lambda: window.span(0, window.size))
    except (OSError, ValueError):  # ValueError: a name that no file can have
        faults.add("missing_file", name)
        return None
    if header is None:
        faults.add("not_an_image", name)
        return None
    size = header.width, header.height
    if any(entry.get(side, real) != real for side, real in zip(("width", "height"), size, strict=True)):
        expected = f"{entry.get('width')} x {entry.get('height')}"
        faults.add("size_mismatch", f"{name} is {size[0]} x {size[1]}, not {expected}")
        return None
    inside = clean_boxes(boxes, *size, faults, name)
    if not len(inside):
        faults.add("empty_image", name)
    return Picture(name, path, 0, window.size, *size, inside, entry["id"])
