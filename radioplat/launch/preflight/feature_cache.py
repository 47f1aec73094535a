"""Preflight steps: repeat the views of images in a run of several passes, and store the teachers' features of them."""

from __future__ import annotations

import copy
import math
import shutil
from pathlib import Path

from radioplat.data.order.order import SampleOrder
from radioplat.design.automatic import Decision
from radioplat.design.models import Models
from radioplat.design.stages import total_steps
from radioplat.design.views import run_views
from radioplat.launch.preflight.preflight import Preflight
from radioplat.spec.schema.root import Spec

FEATURE_CACHE = "feature cache"  # title of the fact
FOLDER = "feature_cache"  # in the task's results folder, if the spec names none
_DISK_SHARE = 0.5  # of the free space that an unasked cache may fill
# Shown four times, views taught the student of part `scratch` of benchmarks.teach as much as four different ones,
# within the noise of one seed; more repetitions were not tried.
TIMES_A_VIEW = 4
_WORTH = 0.25  # share of a run's views that must repeat


def repeated_views(preflight: Preflight) -> None:
    """Decide after how many passes the views of an image repeat, if the spec leaves it open; record it as a fact.

    Teachers compute a view once if their features fit on the disk. No view is shown more than
    :data:`TIMES_A_VIEW` times. A run that has begun keeps its views.
    """
    spec, models, data = preflight.spec, preflight.models, preflight.data
    if spec.dataset.augmentation.views_per_image is not None or models is None or data is None:
        return
    earlier = preflight.beginning.spec
    if earlier is not None:
        count, reason = earlier.dataset.augmentation.views_per_image or 0, ""
    else:
        count, reason = _choose_views(preflight, models, data.order)
    preflight.spec = copy.deepcopy(spec)
    preflight.spec.dataset.augmentation.views_per_image = count
    if count and reason:
        preflight.decide(Decision("dataset.augmentation.views_per_image", count, reason))


def _choose_views(preflight: Preflight, models: Models, order: SampleOrder) -> tuple[int, str]:
    """Return the number of views of an image and the reason for it; 0 if each pass shows another one."""
    spec, config = preflight.spec, preflight.spec.feature_cache
    if config.enabled is False or not _cached_numbers(models) or not _can_repeat(spec, models):
        return 0, ""
    images = total_steps(spec, preflight.steps_per_epoch) * spec.global_batch_size
    shares = enumerate(order.mixture.shares)
    passes = max(images * share / order.mixture.period / order.pass_length(i) for i, share in shares) / order.repeats
    count = math.ceil(passes / TIMES_A_VIEW) * order.repeats
    if repeated_share(order, count, images) < _WORTH:
        return 0, ""
    size, free = _bytes(models, order, count), _usable(preflight)
    if size > free:
        return 0, ""
    return count, f"{passes:.3g} passes over the images; each has {count} view(s), which teachers compute once"


def feature_cache(preflight: Preflight) -> None:
    """Choose a folder for the feature cache if the run repeats views and the spec names none; record it as a fact."""
    spec, models, data = preflight.spec, preflight.models, preflight.data
    config = spec.feature_cache
    if models is None or data is None or config.enabled is False or not _cached_numbers(models):
        return
    each, note, folder = 2 * sum(_cached_numbers(models)), "", config.dir
    if not folder:
        views = views_per_image(spec, models)
        images = total_steps(spec, preflight.steps_per_epoch) * spec.global_batch_size
        repeated = repeated_share(data.order, views, images) if views else 0.0
        if not repeated and not config.enabled:
            return
        note = f"; {repeated:.0%} of the run's views repeat"
        size, free = _bytes(models, data.order, views or 1), _usable(preflight)
        if size > free and not config.enabled:
            preflight.facts[FEATURE_CACHE] = (
                f"none{note}, but their features need {size / 1e9:,.1f} GB and {free / 1e9:,.1f} GB may be used: "
                "name a folder in feature_cache.dir"
            )
            return
        folder = str((preflight.folder / FOLDER).absolute())
    preflight.feature_cache = folder
    preflight.facts[FEATURE_CACHE] = (
        f"{folder}: {each:,} bytes a sample, at most {config.max_bytes // each:,} samples{note}"
    )


def views_per_image(spec: Spec, models: Models) -> int | None:
    """Return how many different views an image has; None if they never repeat."""
    if not _can_repeat(spec, models):
        return None
    views = run_views(spec, models.teachers, models.infos, models.student_stride)
    augmentation = spec.dataset.augmentation
    split = spec.dataset.train_dataset
    moves = split.full_equivariance or split.shift_equivariance or any(view.shifted for view in views)
    return augmentation.views_per_image or (None if moves or augmentation.is_random else 1)


def _can_repeat(spec: Spec, models: Models) -> bool:
    """Return False if a size is drawn for each micro-batch."""
    views = run_views(spec, models.teachers, models.infos, models.student_stride)
    return not any(len(view.sizes) > 1 or view.plan for view in views)


def repeated_share(order: SampleOrder, views: int, images: int) -> float:
    """Return the share of the run's ``images`` that follow the position where all sources repeat their views."""
    mixture = order.mixture
    first = max(
        math.ceil(views * order.pass_length(i) * mixture.period / share) for i, share in enumerate(mixture.shares)
    )
    return max(0.0, 1 - first / images)


def _bytes(models: Models, order: SampleOrder, views: int) -> int:
    """Return the size of the features of all images in so many views."""
    images = sum(map(order.pass_length, range(len(order.mixture.shares))))
    return 2 * sum(_cached_numbers(models)) * views * images


def _usable(preflight: Preflight) -> int:
    """Return the bytes that an unasked cache may fill; a folder that the spec names may be on another disk."""
    config = preflight.spec.feature_cache
    return config.max_bytes if config.dir else min(config.max_bytes, int(_DISK_SHARE * _free(preflight.folder)))


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
