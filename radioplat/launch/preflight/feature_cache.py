"""Preflight step: use a feature cache if a run shows the same views of its images again."""

from __future__ import annotations

import math
import shutil
from pathlib import Path

from radioplat.data.order.order import SampleOrder
from radioplat.design.models import Models
from radioplat.design.stages import total_steps
from radioplat.design.views import run_views
from radioplat.launch.preflight.preflight import Preflight
from radioplat.spec.schema.root import Spec

FEATURE_CACHE = "feature cache"  # title of the fact
FOLDER = "feature_cache"  # in the task's results folder, if the spec names none
_DISK_SHARE = 0.5  # of the free space that an unasked cache may fill


def feature_cache(preflight: Preflight) -> None:
    """Choose a folder for the feature cache if the run repeats views and the spec names none; record it as a fact."""
    spec, models, data = preflight.spec, preflight.models, preflight.data
    config = spec.feature_cache
    if models is None or data is None or config.enabled is False or not (numbers := sum(_cached_numbers(models))):
        return
    each, note, folder = 2 * numbers, "", config.dir
    if not folder:
        views = views_per_image(spec, models)
        images = total_steps(spec, preflight.steps_per_epoch) * spec.global_batch_size
        repeated = repeated_share(data.order, views, images) if views else 0.0
        if not repeated and not config.enabled:
            return
        note = f"; {repeated:.0%} of the run's views repeat"
        size = each * (views or 1) * sum(map(data.order.pass_length, range(len(data.order.mixture.shares))))
        room = min(config.max_bytes, int(_DISK_SHARE * _free(preflight.folder)))
        if size > room and not config.enabled:
            preflight.facts[FEATURE_CACHE] = (
                f"none{note}, but their features need {size / 1e9:,.1f} GB and {room / 1e9:,.1f} GB may be used: "
                "name a folder in feature_cache.dir"
            )
            return
        folder = str((preflight.folder / FOLDER).absolute())
    preflight.feature_cache = folder
    preflight.facts[FEATURE_CACHE] = (
        f"{folder}: {each:,} bytes a sample, room for {config.max_bytes // each:,} samples{note}"
    )


def views_per_image(spec: Spec, models: Models) -> int | None:
    """Return after how many passes an image's views repeat; None if each pass shows other views."""
    views = run_views(spec, models.teachers, models.infos, models.student_stride)
    if any(len(view.sizes) > 1 or view.plan for view in views):
        return None  # a size is drawn for each micro-batch
    augmentation = spec.dataset.augmentation
    split = spec.dataset.train_dataset
    moves = split.full_equivariance or split.shift_equivariance or any(view.shifted for view in views)
    return augmentation.views_per_image or (None if moves or augmentation.is_random else 1)


def repeated_share(order: SampleOrder, views: int, images: int) -> float:
    """Return the share of the run's ``images`` that follow the position where all sources repeat their views."""
    mixture = order.mixture
    first = max(
        math.ceil(views * order.pass_length(i) * mixture.period / share) for i, share in enumerate(mixture.shares)
    )
    return max(0.0, 1 - first / images)


def _free(folder: Path) -> int:
    """Return the free bytes of the disk of a folder that may not exist yet."""
    while not folder.exists():
        folder = folder.parent
    return shutil.disk_usage(folder).free


def _cached_numbers(models: Models) -> list[int]:
    """Return how many bf16 numbers a sample has in the cache, by teacher."""
    numbers = []
    for teacher in models.teachers:
        if teacher.inside or not teacher.service.cache or teacher.mosaic > 1:
            continue
        info, (rows, columns) = models.infos[teacher.name], models.grids[teacher.name]
        sizes = {"summary": info.summary_dim, "spatial": rows * columns * info.spatial_dim, "logits": info.logits_dim}
        sizes |= {key: math.prod(shape) for key, shape in info.named.items()}
        numbers.append(sum(sizes[kind] for kind in teacher.wanted))
    return numbers
