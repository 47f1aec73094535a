"""The same run on a GPU: other placement, same code."""

from __future__ import annotations

import math

import pytest
import torch

import radioplat
from radioplat.track.status import read_status

pytestmark = [
    pytest.mark.gpu,
    pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device"),
    pytest.mark.timeout(600),
]


@pytest.mark.parametrize("mode", ["local", "ray"])
def test_a_run_on_one_gpu_gives_the_cpu_losses(make_spec, tmp_path, mode):
    """fp32 without TF32: the first step within 1e-4 of the CPU's, and every loss finite."""
    losses = {}
    for device in ("cuda", "cpu"):
        overrides = [f"results_dir={tmp_path / device}", f"cluster.mode={mode if device == 'cuda' else 'local'}"]
        if mode == "ray" and device == "cuda":
            overrides += ["teachers.lite0.num_gpus=0.2", "teachers.vit.num_gpus=0.2"]
        with pytest.MonkeyPatch.context() as patch:
            if device == "cpu":
                patch.setattr(torch.cuda, "is_available", lambda: False)
            result = radioplat.distill(make_spec(tmp_path), overrides)
        lines = read_status(result.folder / "status.json")
        losses[device] = [line["kpi"]["loss"] for line in lines if "max_step" in line]
    assert all(math.isfinite(loss) for loss in losses["cuda"])
    assert losses["cuda"][0] == pytest.approx(losses["cpu"][0], rel=1e-4)
