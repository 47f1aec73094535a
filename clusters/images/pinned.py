"""List the images in cluster files and Dockerfiles that have no digest; the exit status is 1 if there are any.

    python clusters/images/pinned.py              # the files of clusters/
    python clusters/images/pinned.py FILE ...     # Kubernetes manifests, files for `ray up`, Dockerfiles

A tag may be another image tomorrow; a digest is the content of one image. The registry tells it:

    docker buildx imagetools inspect --format '{{.Manifest.Digest}}' REGISTRY/radioplat-cpu:0.1.0
"""

from __future__ import annotations

import argparse
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import yaml

HERE = Path(__file__).parents[1]
_FIELDS = ("image", "head_image", "worker_image", "image_id")
_DIGEST = re.compile(r"@sha256:[0-9a-f]{64}$")


def images(path: Path) -> list[str]:
    """Return the images that a file names, each once.

    Raises:
        OSError, yaml.YAMLError: it cannot be read.
    """
    text = path.read_text()
    if path.suffix in (".yaml", ".yml"):
        found = [image for tree in yaml.safe_load_all(text) for image in _in_tree(tree)]
    else:
        found = re.findall(r"^(?:ARG BASE=|FROM (?!\$))(\S+)", text, re.MULTILINE)
    return list(dict.fromkeys(found))


def _in_tree(tree: object) -> Iterator[str]:
    inner = tree.values() if isinstance(tree, dict) else tree if isinstance(tree, list) else ()
    if isinstance(tree, dict):
        yield from (tree[name] for name in _FIELDS if isinstance(tree.get(name), str))
    for each in inner:
        yield from _in_tree(each)


def main() -> None:
    """Print a line for each image without a digest."""
    parser = argparse.ArgumentParser(description="List images without a digest.")
    parser.add_argument("files", nargs="*", type=Path, help="default: those of clusters/")
    files = parser.parse_args().files or sorted([*HERE.rglob("*.yaml"), *HERE.rglob("*.Dockerfile")])
    lines = [
        f"{path}: {image} is not pinned: write it as NAME:TAG@sha256:..., with its digest"
        for path in files
        for image in images(path)
        if not _DIGEST.search(image)
    ]
    print("\n".join(lines) or "all images are pinned")
    sys.exit(bool(lines))


if __name__ == "__main__":
    main()
