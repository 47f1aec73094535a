"""Images on disk for the rungs that decode, and how fast a core decodes them."""

from __future__ import annotations

import io
import os
import statistics
import tarfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from benchmarks.gpu.interleave import ROUNDS
from benchmarks.gpu.setting import Setting

SIDES, QUALITY = (400, 600), 90  # pixels of an image, height and width
CPU_SIDES = (80, 96)
IMAGES, SHARDS, DIFFERENT = 512, 4, 32
CLASSES = 8


def write_shards(setting: Setting, images: int = IMAGES) -> Path:
    """Write JPEGs of smooth noise, with labels, into tar shards, unless they are there; return the folder.

    Folders of other numbers of images have other images. Noise of a quarter of the resolution is about as large as a
    photograph: white noise would decode more slowly.
    """
    folder = Path(setting.scratch) / f"shards_{images}"
    if folder.exists():
        return folder
    aside = folder.with_suffix(".part")
    aside.mkdir(exist_ok=True)
    sides = SIDES if setting.device == "cuda" else CPU_SIDES
    contents = [_jpeg(images + number, sides) for number in range(DIFFERENT)]
    for shard in range(SHARDS):
        with tarfile.open(aside / f"{shard}.tar", "w") as tar:
            for number in range(shard, images, SHARDS):
                label = str(number % CLASSES).encode()
                for name, content in (
                    (f"{number:05d}.jpg", contents[number % DIFFERENT]),
                    (f"{number:05d}.cls", label),
                ):
                    member = tarfile.TarInfo(name)
                    member.size = len(content)
                    tar.addfile(member, io.BytesIO(content))
    aside.rename(folder)
    return folder


def _jpeg(seed: int, sides: tuple[int, int]) -> bytes:
    height, width = sides
    generator = np.random.default_rng(seed)
    small = Image.fromarray(generator.integers(0, 256, (height // 4, width // 4, 3), np.uint8))
    content = io.BytesIO()
    small.resize((width, height), Image.Resampling.BICUBIC).save(content, "JPEG", quality=QUALITY)
    return content.getvalue()


def decode(setting: Setting) -> dict[str, Any]:
    """Images/s that one core decodes and crops to the student's size, by the run's own reader and by Pillow."""
    from radioplat.data.index.build import build_index
    from radioplat.data.loading.run_data import RunData, dataset_to_json, open_reader
    from radioplat.data.views.render import ViewSpec
    from radioplat.spec.schema.dataset import DatasetConfig, SplitConfig, TarSource

    folder, size = write_shards(setting), setting.student.size
    split = SplitConfig(tar_data_sources=[TarSource(str(folder))])
    dataset = DatasetConfig(img_size=size, batch_size=setting.batch, train_dataset=split)
    scratch = Path(setting.scratch) / "decode"
    index = build_index(split, "dataset.train_dataset", scratch / "index", max_pixels=dataset.max_pixels)
    RunData.create(index, split, dataset.max_pixels).save(scratch / "run")
    reader = open_reader(str(scratch / "run"), dataset_to_json(dataset), (tuple(ViewSpec(str(size), size)),))
    sides = SIDES if setting.device == "cuda" else CPU_SIDES
    contents = [_jpeg(number, sides) for number in range(DIFFERENT)]

    def by_hand(number: int) -> None:
        """Decode a micro-batch as torchvision's datasets do."""
        for i in range(setting.batch):
            image = Image.open(io.BytesIO(contents[(number + i) % DIFFERENT])).convert("RGB")
            np.asarray(
                image.resize((size, size), Image.Resampling.BILINEAR, box=(0, 0, image.width // 2, image.height))
            )

    times: dict[str, list[float]] = {"ours": [], "by_hand": []}
    number, each = 0, setting.seconds / ROUNDS / 2
    for _ in range(ROUNDS):
        for name, call in (("ours", reader.read), ("by_hand", by_hand)):
            begin, cpu, count = time.perf_counter(), time.process_time(), 0
            while time.perf_counter() - begin < each or not count:
                call(number)
                number, count = number + 1, count + 1
            times[name].append((time.process_time() - cpu) / count / setting.batch)
    rates = {name: [1 / seconds for seconds in of_side] for name, of_side in times.items()}
    found: dict[str, Any] = {
        name: {"images_per_cpu_s": statistics.median(values), "spread": [min(values), max(values)]}
        for name, values in rates.items()
    }
    return {**found, "image": [*sides, 3], "crop": size, "cores": len(os.sched_getaffinity(0))}
