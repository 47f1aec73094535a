"""Relative paths in a Ray job, whose working directory is a temporary copy."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from radioplat.errors import Problem
from radioplat.spec.loading.weights_fields import weights_fields
from radioplat.spec.schema.root import Spec

_RAY_COPY = "working_dir_files"  # folder of a Ray session with such copies


def paths_in_copy(spec: Spec) -> list[Problem]:
    """Return a problem for each relative path of ``spec``, if this process runs in Ray's copy.

    Ray deletes the copy after the job, and each node has its own, so files written there are lost.
    """
    return list(relative_in_copy(_paths(spec)))


def relative_in_copy(paths: Iterable[tuple[str, str]]) -> Iterator[Problem]:
    """Yield a problem for each relative path among ``paths``, field and value, if this process runs in Ray's copy."""
    if _RAY_COPY not in Path.cwd().parts:
        return
    for where, path in paths:
        if not Path(path).is_absolute() and "://" not in path:  # object stores are the same from everywhere
            yield Problem(
                f"{path} is relative, and this job runs in Ray's temporary copy of the working directory",
                where,
                f"Give the absolute path, e.g. {where}=$PWD/{path} where you submit.",
            )


def _paths(spec: Spec) -> Iterator[tuple[str, str]]:
    """Yield field and value of every path that a run reads or writes; those below ``results_dir`` are left out."""
    yield "results_dir", spec.results_dir
    below = f"{spec.results_dir}/"
    for where, path in _inputs(spec):
        if path and not path.startswith(below):
            yield where, path


def _inputs(spec: Spec) -> Iterator[tuple[str, str | None]]:
    for name in ("train_dataset", "val_dataset"):
        split = getattr(spec.dataset, name)
        yield f"dataset.{name}.images_dir", split.images_dir
        for i, source in enumerate(split.tar_data_sources):
            yield f"dataset.{name}.tar_data_sources[{i}].root_dir", source.root_dir
    yield "dataset.index_dir", spec.dataset.index_dir
    yield "feature_cache.dir", spec.feature_cache.dir
    yield "train.checkpoint_dir", spec.train.checkpoint_dir
    yield "distill.target_norm.path", spec.distill.target_norm.path
    yield "train.resume_training_checkpoint_path", spec.train.resume_training_checkpoint_path
    for path, config in (("segmentation", spec.evaluate.segmentation), ("change", spec.evaluate.change)):
        for name in (*config.roles, "masks", "shards"):
            for member in (f"{name}_dir", f"val_{name}_dir"):
                yield f"evaluate.{path}.{member}", getattr(config, member)
    for field in weights_fields(spec):
        yield field.path, field.value
