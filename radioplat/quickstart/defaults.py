"""The quickstart's spec, and the creation of its input files."""

from __future__ import annotations

from pathlib import Path

from radioplat.errors import SpecError
from radioplat.quickstart.corpora import Corpora, pack_corpora
from radioplat.quickstart.weights import teacher_weights
from radioplat.spec.loading.job_paths import paths_in_copy
from radioplat.spec.loading.load import load_spec

# The root of a checkout; if radioplat is installed without one, as in the containers, specs/ is in the current folder.
_CHECKOUT = Path(__file__).resolve().parents[2]
ROOT = _CHECKOUT if (_CHECKOUT / "specs").is_dir() else Path.cwd()
SPEC = ROOT / "specs" / "quickstart.yaml"
TEACHERS = ("tf_efficientnet_lite0", "tf_efficientnet_lite2")


def ensure_inputs(overrides: list[str]) -> Corpora:
    """Write the corpora and the converted weights of the teachers below ``results_dir``, if they are missing.

    Args:
        overrides: of the quickstart's spec; only ``results_dir`` matters here.
    """
    spec = load_spec(SPEC, overrides)
    problems = paths_in_copy(spec)
    if problems:
        raise SpecError(*problems)
    folder = Path(spec.results_dir)
    for name in TEACHERS:
        teacher_weights(name, folder / "weights")
    return pack_corpora(folder / "corpora")
