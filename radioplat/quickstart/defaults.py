"""The specs whose inputs come from installed packages, and the creation of these files."""

from __future__ import annotations

from pathlib import Path

from radioplat.errors import SpecError
from radioplat.quickstart.corpora import Corpora, pack_corpora
from radioplat.quickstart.weights import teacher_weights
from radioplat.spec.loading.job_paths import paths_in_copy
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.init.starter_files import starter_root

ROOT = starter_root()
SPEC = ROOT / "specs" / "quickstart.yaml"
RADIO_VIT = ROOT / "specs" / "radio_vit.yaml"
TEACHERS = ("tf_efficientnet_lite0", "tf_efficientnet_lite2")


def has_own_inputs(path: str | Path) -> bool:
    """Return whether ``path`` is one of the specs whose inputs are made here, or a copy of it by ``radioplat init``."""
    path = Path(path)
    return path.is_file() and path.read_bytes() in (SPEC.read_bytes(), RADIO_VIT.read_bytes())


def ensure_inputs(overrides: list[str], path: str | Path = SPEC) -> Corpora:
    """Write the corpora, the teachers' weights and the student's start below ``results_dir``, if they are missing.

    Args:
        overrides: of the spec; only ``results_dir`` matters here, and ``prune`` if the spec has that section.
        path: of the spec.
    """
    corpora = ensure_images(overrides, path)
    ensure_start(overrides, path)
    return corpora


def ensure_images(overrides: list[str], path: str | Path = SPEC) -> Corpora:
    """Write the corpora and the converted weights of the teachers, if they are missing."""
    spec = load_spec(path, overrides)
    problems = paths_in_copy(spec)
    if problems:
        raise SpecError(*problems)
    folder = Path(spec.results_dir)
    for name in TEACHERS:
        teacher_weights(name, folder / "weights")
    return pack_corpora(folder / "corpora")


def ensure_start(overrides: list[str], path: str | Path = SPEC) -> Path | None:
    """Prune the student's start out of a teacher, if it is missing; return its checkpoint, or None without one."""
    from radioplat.tasks.prune.prune import prune

    spec = load_spec(path, overrides)
    if spec.prune.checkpoint is None or spec.train.pretrained_model_path is None:
        return None
    start = Path(spec.train.pretrained_model_path)
    if not start.exists():
        prune(spec)
    return start
