"""Put the run's feature cache in front of its teachers."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from functools import partial

from radioplat.common import collectives
from radioplat.data.loading.run_data import RunData
from radioplat.design.run import Run
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.teachers.cache.caching_client import CachedTeacher
from radioplat.teachers.cache.key import SamplePlaces, teacher_key, weights_hash
from radioplat.teachers.cache.store import FeatureStore
from radioplat.teachers.serving.client import TeacherClient
from radioplat.tracking.status import StatusLog


@contextlib.contextmanager
def through_cache(run: Run, clients: dict[str, TeacherClient], rank: int) -> Iterator[dict[str, TeacherClient]]:
    """Yield ``clients``, by teacher name, with the cacheable ones behind the ``feature_cache``, if it is enabled.

    At the end of the block, buffered features are written. Every rank must enter it, in the training thread, once the
    process group is initialized and the teachers are ready. If features can no longer be written to the cache, a
    warning goes to ``status.json``.

    Raises:
        SpecError, WeightsError: on every rank, if any rank cannot use the cache folder or read the weights.
    """
    config = run.spec.feature_cache
    folder = run.feature_cache
    # Features of an image in a mosaic depend on the images next to it, so they cannot be cached.
    cached = [t for t in run.frozen_teachers if t.service.cache and t.mosaic == 1] if folder else []
    if not folder or not cached:
        yield clients
        return
    # Weights may be gigabytes, so only rank 0 reads and hashes them.
    hashes = collectives.from_first(lambda: {t.name: weights_hash(t) for t in cached})
    keys = collectives.alike(lambda: {t.name: _key(run, t, clients, hashes) for t in cached})
    places = SamplePlaces(RunData.load(run.data_dir, run.spec.dataset.train_dataset).index)
    store = collectives.alike(
        lambda: FeatureStore(folder, config.max_bytes, partial(_warn, run), config.write_interval_s)
    )
    try:
        yield clients | {name: CachedTeacher(clients[name], key, store, places) for name, key in keys.items()}
    finally:
        store.close()


def _key(run: Run, teacher: ResolvedTeacher, clients: dict[str, TeacherClient], hashes: dict[str, str]) -> bytes:
    return teacher_key(teacher, run.grids[teacher.name], clients[teacher.name].precision(), hashes[teacher.name])


def _warn(run: Run, line: str) -> None:
    with StatusLog(run.folder / "status.json") as status:
        status.write(line, verbosity="WARNING")
