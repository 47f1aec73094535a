"""A run with ``compat: tao``: statistics that include each step, kept by a resume."""

from __future__ import annotations

import shutil

import pytest
import torch

from radioplat.errors import SpecError
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.distill import TargetNormFit, TargetNormType
from radioplat.tracking.results import TaskFolder

STEPS = "train.num_epochs=1"
EVERY_STEP = {"checkpoint_interval": 2, "checkpoint_interval_unit": "step"}


@pytest.fixture(scope="module")
def spec(make_spec, tmp_path_factory):
    """The two teachers of the other runs, with TAO's objective; 4 steps of 3 micro-batches."""
    spec = make_spec(tmp_path_factory.mktemp("tao"))
    spec["distill"] = {"mlp_hidden_size": 32, "teacher": spec["distill"]["teacher"], "loss_type": "balanced"}
    return {**spec, "compat": "tao", "train": {**spec["train"], "optim": {"lr": 1e-3}, **EVERY_STEP}}


@pytest.mark.proof
def test_a_resume_goes_on_as_if_there_had_been_no_stop(spec, distil, student_tensors, tmp_path):
    whole = distil(spec, STEPS, f"results_dir={tmp_path / 'whole'}")
    written = load_spec(whole.folder / "experiment.yaml").distill
    assert written.target_norm.type is TargetNormType.tao_phi_s and written.mean_over_teachers
    assert written.target_norm.fit is TargetNormFit.with_step
    cut = (f"results_dir={tmp_path / 'cut'}",)
    broken = tmp_path / "cut" / "distill"
    shutil.copytree(whole.folder, broken, symlinks=True)
    shutil.rmtree(broken / "model_epoch_001")
    TaskFolder(broken.parent, broken.name).point_latest("model_epoch_000_step_00002")
    with pytest.raises(SpecError, match="began with compat: tao"):
        distil({**spec, "compat": "radioplat"}, STEPS, *cut)
    again = distil(spec, STEPS, *cut)
    assert again.result.resumed_from == 2
    assert again.losses == pytest.approx({step: whole.losses[step] for step in (3, 4)}, rel=1e-6)
    tensors = [student_tensors(run.result.checkpoint) for run in (whole, again)]
    assert all(torch.allclose(a, tensors[1][name], rtol=1e-5, atol=1e-6) for name, a in tensors[0].items())
