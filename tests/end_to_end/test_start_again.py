"""A run that starts from another run's heads, under another transform of their targets."""

from __future__ import annotations

import pytest
import torch

import radioplat

STILL = ("train.max_steps=1", "train.optim.lr=1e-12", "train.optim.weight_decay=0")


@pytest.mark.parametrize(("old", "new", "precision"), [("none", "phi_s", "fp32"), ("zca", "phi_s", "bf16")])
def test_heads_say_the_same_after_a_step_that_moves_nothing(make_spec, distil, tmp_path, old, new, precision):
    def spec_of(name: str, norm: str) -> dict:
        spec = make_spec(tmp_path / name, {"train": {"precision": precision, "zero_stage": 1, "enable_ema": True}})
        spec["distill"]["teacher"] = [spec["distill"]["teacher"][1] | {"mode": "combo", "summary_loss_type": "cosine"}]
        spec["distill"]["target_norm"] = {"type": norm, **({"fit_batches": 2} if norm != "none" else {})}
        spec["teachers"] = {}
        return spec

    first = distil(spec_of("first", old), "train.max_steps=2", "train.optim.lr=0.01").result.checkpoint
    then = distil(spec_of("then", new), *STILL, f"train.pretrained_model_path={first}")
    assert not [line for line in then.lines if "head " in line]
    images = torch.randint(0, 256, (2, 3, 64, 64), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    before = radioplat.load_student(first, ema=False)
    with torch.no_grad():
        features = before(images)
        theirs = before.head("vit", features)
        for ema in (False, True):
            after = radioplat.load_student(then.result.checkpoint, ema=ema)
            assert {"spatial_rotation", "summary_rotation"} <= dict(after.heads["vit"].named_buffers()).keys()
            assert after.heads["vit"].spatial_mean.abs().max() > 0
            mine = after.head("vit", features)
            share = 1e-3 if precision == "fp32" else 0.02  # an engine in bf16 rounds the weights that it starts with
            for kind in ("spatial", "summary"):
                value, expected = getattr(mine, kind), getattr(theirs, kind)
                assert float((value - expected).norm()) < share * float(expected.norm()), (ema, kind)
