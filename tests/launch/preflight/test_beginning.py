"""Where a start looks for what an earlier start of the run decided."""

from __future__ import annotations

import pytest

from radioplat.cluster.resources import Resources
from radioplat.launch.preflight.beginning import Beginning, beginning
from radioplat.launch.preflight.preflight import AUTOMATIC, Preflight
from radioplat.launch.preflight.workers import precision, spot
from radioplat.models.fp32_arithmetic import set_fp32_arithmetic
from radioplat.spec.loading.load import load_spec, to_yaml
from radioplat.spec.resolved.precision import fp32_arithmetic_of
from radioplat.spec.schema.train import Precision


@pytest.fixture
def run(tmp_path):
    """run(place, *overrides): write the spec of an earlier start, with these overrides, into a folder."""

    def write(place, *overrides: str):
        place.mkdir(parents=True, exist_ok=True)
        (place / "experiment.yaml").write_text(to_yaml(load_spec({}, overrides)))
        return place

    return write


def seed(found: Beginning) -> int | None:
    return found.spec and found.spec.train.seed


def test_a_folder_without_checkpoints_has_not_begun(run, tmp_path):
    folder = run(tmp_path / "distill", "train.seed=5")
    assert beginning(load_spec({}), "distill", folder) == Beginning()
    (folder / "model_epoch_001").mkdir()
    found = beginning(load_spec({}), "distill", folder)
    assert found.begun and seed(found) == 5


def test_the_checkpoint_that_the_spec_names_comes_first(run, tmp_path):
    folder, other = run(tmp_path / "distill", "train.seed=5"), run(tmp_path / "other" / "distill", "train.seed=6")
    for each in (folder, other):
        (each / "model_epoch_001").mkdir()
    spec = load_spec({}, [f"train.resume_training_checkpoint_path={other / 'model_epoch_001'}"])
    assert seed(beginning(spec, "distill", folder)) == 6
    (other / "experiment.yaml").unlink()  # only the checkpoint was copied
    assert seed(beginning(spec, "distill", folder)) == 5
    assert beginning(spec, "distill", tmp_path / "new") == Beginning(begun=True)


def test_a_lost_folder_has_its_mirror(run, tmp_path):
    spec = load_spec({}, [f"train.checkpoint_dir={tmp_path / 'kept'}"])
    assert beginning(spec, "distill", tmp_path / "lost") == Beginning()
    kept = run(tmp_path / "kept" / "distill", "train.seed=7")
    assert beginning(spec, "distill", tmp_path / "lost") == Beginning()
    (kept / "model_epoch_001-0123abcd").mkdir()
    (kept / "model_epoch_001-0123abcd" / "manifest.json").write_text("{}")
    assert seed(beginning(spec, "distill", tmp_path / "lost")) == 7


def test_a_run_of_an_unknown_beginning_stays_at_what_earlier_versions_did(tmp_path, monkeypatch):
    """A checkpoint whose spec is gone: fp32, and torch's own switches."""
    import torch

    (tmp_path / "distill" / "model_epoch_001").mkdir(parents=True)
    preflight = Preflight(load_spec({}), "distill", tmp_path / "distill")
    precision(preflight)
    assert (preflight.spec.train.precision, preflight.spec.train.tf32) == (Precision.fp32, None)
    monkeypatch.setattr(torch, "set_float32_matmul_precision", lambda value: pytest.fail(f"set to {value}"))
    set_fp32_arithmetic(fp32_arithmetic_of(preflight.spec.train), torch.device("cuda"))


SPOT_FIELDS = ("checkpoint_minutes", "keep_last", "max_failures")


@pytest.mark.parametrize(
    ("overrides", "labelled", "expected"),
    [
        ([], False, (None, None, None)),
        ([], True, (5.0, 3, 10)),
        (["cluster.spot=true"], False, (5.0, 3, 10)),
        (["cluster.spot=false"], True, (None, None, None)),
        (["cluster.spot=true", "train.keep_last=1", "train.max_failures=-1"], False, (5.0, 1, -1)),
        (["train.checkpoint_minutes=60"], True, (60.0, 3, 10)),
    ],
)
def test_runs_on_spot_nodes_have_other_defaults(tmp_path, overrides, labelled, expected):
    resources = Resources(8, 0, spot=labelled)
    found = Preflight(load_spec({}, overrides), "distill", tmp_path, resources=resources, on_ray=True)
    found.take(spot)
    assert tuple(getattr(found.spec.train, name) for name in SPOT_FIELDS) == expected
    said = found.facts.get(AUTOMATIC, "")
    assert ("spot nodes" in said) == (expected != (None, None, None))


def test_a_run_keeps_the_defaults_of_the_nodes_that_it_began_on(run, tmp_path):
    folder = run(tmp_path / "distill", "train.checkpoint_minutes=5", "train.keep_last=3", "train.max_failures=10")
    (folder / "model_epoch_001").mkdir()
    found = Preflight(load_spec({}), "distill", folder, resources=Resources(8, 0), on_ray=True)
    found.take(spot)
    assert tuple(getattr(found.spec.train, name) for name in SPOT_FIELDS) == (5.0, 3, 10)
