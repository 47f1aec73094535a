"""Compute features of images by the ONNX file in this folder: python infer_onnxruntime.py IMAGE... [--out features.npz]

Needs only numpy, Pillow and onnxruntime. The preprocessing of images is described in preprocessing.json.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

HERE = Path(__file__).resolve().parent


def prepare(path: str, height: int, width: int) -> np.ndarray:
    """Read the centred part of an image with this aspect ratio, resized bilinearly: float32 ``[3, height, width]``."""
    with Image.open(path) as opened:
        image = opened.convert("RGB")
    scale = min(image.width / width, image.height / height)
    left, top = (image.width - width * scale) / 2, (image.height - height * scale) / 2
    # Crop first: the filter must not read pixels outside of this part.
    x, y = math.floor(left), math.floor(top)
    cut = image.crop((x, y, math.ceil(image.width - left), math.ceil(image.height - top)))
    box = (left - x, top - y, left - x + width * scale, top - y + height * scale)
    pixels = cut.resize((width, height), Image.Resampling.BILINEAR, box=box)
    return np.asarray(pixels, np.float32).transpose(2, 0, 1) / 255


def main() -> int:
    """Read the images, run the graph, write one array for each output."""
    about = json.loads((HERE / "preprocessing.json").read_text())
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("images", nargs="+", metavar="IMAGE")
    parser.add_argument("--model", default=str(HERE / about["onnx"]), help="default: %(default)s")
    parser.add_argument("--out", default="features.npz", help="default: %(default)s")
    args = parser.parse_args()
    entry = about["input"]
    try:
        images = np.stack([prepare(path, entry["height"], entry["width"]) for path in args.images])
    except OSError as error:
        print(f"error: {error}", file=sys.stderr)
        return 1
    import onnxruntime  # not at the top: infer_tensorrt.py takes `prepare` from here

    session = onnxruntime.InferenceSession(args.model, providers=onnxruntime.get_available_providers())
    names, fixed = [output.name for output in session.get_outputs()], entry["batch"]
    features: dict[str, list[np.ndarray]] = {name: [] for name in names}
    for start in range(0, len(images), fixed or 8):
        batch = images[start : start + (fixed or 8)]
        count = len(batch)
        if fixed and count < fixed:  # a graph with a fixed batch size: pad, and drop the padding
            batch = np.concatenate([batch, np.zeros((fixed - count, *batch.shape[1:]), np.float32)])
        for name, values in zip(names, session.run(names, {entry["name"]: batch}), strict=True):
            features[name].append(values[:count])
    arrays: dict[str, Any] = {name: np.concatenate(parts) for name, parts in features.items()}
    np.savez(args.out, **arrays)
    for name, parts in features.items():
        print(f"{name}: {[len(images), *parts[0].shape[1:]]}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
