"""The sides that ``benchmarks.ingest`` compares. Each runs in a process of its own and returns images per second.

All sides read the same shards and give uint8 ``[32, 3, 224, 224]`` of random resized crops (area 0.25 to 1, ratio 3/4
to 4/3, mirrored half of the time). Start-up is left out: the clock starts after ``WARM_UP`` images.
"""

from __future__ import annotations

import contextlib
import io
import multiprocessing
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from radioplat.data.loading.run_data import RunData, dataset_from_json
from radioplat.data.views.crops import plan_crops

BATCH, SIZE, WARM_UP = 32, 224, 640
CORES = 2


@dataclass(frozen=True)
class Work:
    """What every side is given.

    Attributes:
        shards: paths of the tars.
        min_short_side: images whose short side is smaller are rejected; 0 for none.
        folder: an index as a run keeps it, made with that filter.
        dataset: the ``dataset`` section of the spec as JSON.
        images: how many to time.
    """

    shards: tuple[str, ...]
    min_short_side: int
    folder: str
    dataset: str
    images: int


def dataloader(work: Work) -> float:
    """webdataset and torch's DataLoader, as their users write it: Pillow decodes, then the filter, then torchvision."""
    return _rate(_dataloader(work, header_filter=False), work.images)


def dataloader_header_filter(work: Work) -> float:
    """As :func:`dataloader`, but the filter asks Pillow for the size before anything is decoded."""
    return _rate(_dataloader(work, header_filter=True), work.images)


def bare(work: Work) -> float:
    """A process a core and nothing else: read by offset, scaled decode, area resize; crops planned beforehand.

    The kernels are the fastest at hand: libjpeg-turbo by simplejpeg, and an AVX2 resize with a box filter.
    """
    data = RunData.load(Path(work.folder), dataset_from_json(work.dataset).train_dataset)
    augmentation = dataset_from_json(work.dataset).augmentation
    ids = data.order.slice(0, work.images).sample_id
    paths = np.array(data.index.shard_paths)[data.index.shard[ids]]
    crops = plan_crops(data.index.width[ids], data.index.height[ids], augmentation, 42, np.arange(len(ids)))
    jobs = list(
        zip(paths.tolist(), data.index.offset[ids].tolist(), data.index.length[ids].tolist(), crops, strict=True)
    )
    context = multiprocessing.get_context("spawn")
    gate, ends = context.Barrier(CORES + 1), context.SimpleQueue()
    team = [context.Process(target=_bare, args=(jobs[i::CORES], gate, ends)) for i in range(CORES)]
    for process in team:
        process.start()
    gate.wait()
    begin = time.perf_counter()
    for _ in team:
        ends.get()
    seconds = time.perf_counter() - begin
    for process in team:
        process.join()
    return len(jobs) / seconds


def local(work: Work) -> float:
    """Our loader of local mode."""
    from radioplat.data.loading.run_data import open_reader
    from radioplat.data.loading.threads import load_micro_batches

    reader = open_reader(*_reader(work))
    micro_batches = range((work.images + WARM_UP) // BATCH)
    return _rate(
        (b.views["224"].pixels for b in load_micro_batches(reader, micro_batches, threads=CORES, prefetch=4)),
        work.images,
    )


def stream(work: Work) -> float:
    """Our Ray Data stream: one consumer, two decode tasks at a time."""
    import ray

    from radioplat.data.loading.ray_stream import open_stream, read_stream

    ray.init(num_cpus=CORES, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        steps = (work.images + WARM_UP) // BATCH + 16  # what lies behind the last one timed must not run dry
        (iterator,) = open_stream(_reader(work), [[[step] for step in range(steps)]], tasks=CORES, cpus_per_task=1)
        with contextlib.closing(read_stream(iterator)) as batches:
            return _rate((b.views["224"].pixels for b in batches), work.images)
    finally:
        ray.shutdown()


SIDES = {
    "dataloader": dataloader,
    "dataloader_header_filter": dataloader_header_filter,
    "bare": bare,
    "local": local,
    "stream": stream,
}


def _reader(work: Work) -> tuple[str, str, tuple[tuple[str, int], ...]]:
    return work.folder, work.dataset, ((str(SIZE), SIZE),)


def _rate(batches: Iterator, images: int) -> float:
    """Images per second of the ``images`` that follow the warm-up."""
    seen, begin = 0, 0.0
    for batch in batches:
        assert batch.shape[1:] == (3, SIZE, SIZE), batch.shape
        seen += len(batch)
        if not begin and seen >= WARM_UP:
            seen, begin = 0, time.perf_counter()
        elif begin and seen >= images:
            return seen / (time.perf_counter() - begin)
    raise RuntimeError(f"only {seen} images came")


def _dataloader(work: Work, header_filter: bool) -> Iterator:
    import torch
    import webdataset as wds
    from PIL import Image
    from torchvision import transforms

    augment = transforms.Compose(
        [
            transforms.RandomResizedCrop(SIZE, scale=(0.25, 1.0), ratio=(3 / 4, 4 / 3)),
            transforms.RandomHorizontalFlip(),
            transforms.PILToTensor(),
        ]
    )
    least = work.min_short_side
    dataset = wds.WebDataset(list(work.shards), shardshuffle=False).repeat()
    if header_filter:
        dataset = dataset.select(lambda sample: min(Image.open(io.BytesIO(_jpeg(sample))).size) >= least)
    dataset = dataset.decode("pilrgb").map(_jpeg)
    if not header_filter and least:
        dataset = dataset.select(lambda image: min(image.size) >= least)
    dataset = dataset.map(augment).batched(BATCH, collation_fn=torch.stack)
    loader = torch.utils.data.DataLoader(dataset, batch_size=None, num_workers=CORES, multiprocessing_context="fork")
    return iter(loader)


def _jpeg(sample: dict):
    return sample["jpg"] if "jpg" in sample else sample["jpeg"]


def _bare(jobs: list, gate, ends) -> None:
    import simplejpeg
    from cykooz_resizer import FilterType, ImageData, PixelType, ResizeAlg, ResizeOptions, Resizer

    resizer, area = Resizer(), ResizeOptions(resize_alg=ResizeAlg.convolution(FilterType.box))
    files = {path: open(path, "rb", buffering=0) for path in {job[0] for job in jobs}}  # noqa: SIM115
    batch = np.empty((BATCH, 3, SIZE, SIZE), np.uint8)
    gate.wait()
    for i, (path, offset, length, crop) in enumerate(jobs):
        files[path].seek(offset)
        data = files[path].read(length)
        height, width = simplejpeg.decode_jpeg_header(data)[:2]
        box = crop.box
        factor = next((f for f in (8, 4, 2) if min(box.width, box.height) >= f * SIZE), 1)
        rgb = simplejpeg.decode_jpeg(
            data, "RGB", min_height=-(-height // factor), min_width=-(-width // factor), min_factor=factor
        )
        cut = rgb[
            int(box.top / factor) : -int(-box.bottom // factor), int(box.left / factor) : -int(-box.right // factor)
        ]
        target = ImageData(SIZE, SIZE, PixelType.U8x3)
        resizer.resize(ImageData(cut.shape[1], cut.shape[0], PixelType.U8x3, cut.tobytes()), target, area)
        view = np.frombuffer(target.get_buffer(), np.uint8).reshape(SIZE, SIZE, 3)
        batch[i % BATCH] = view[:, :: -1 if crop.hflip else 1].transpose(2, 0, 1)
    ends.put(None)
