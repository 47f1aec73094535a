"""A student whose map is made from a sequence of tokens is taught, and judged with few of them."""

from __future__ import annotations

import pytest

from radioplat.errors import SpecError
from radioplat.tasks.evaluate.evaluate import evaluate

STUDENT = {"embed_dim": 48, "depth": 3, "num_heads": 3, "decoder_depth": 2}


def test_it_is_judged_with_few_tokens(make_spec, distil, tmp_path):
    spec = make_spec(tmp_path) | {"model": {"backbone": {"type": "radio1d_vit_tiny_patch16", "kwargs": STUDENT}}}
    trained = distil(spec)
    assert trained.losses[8] < trained.losses[1]
    spec["evaluate"] = {"num_tokens": [1, 2], "baseline": False, "checkpoint": str(trained.result.checkpoint)}
    found = evaluate(spec).findings.results["fidelity"]
    kept = [found[name]["lite0"]["spatial"].centered for name in ("student, 1 tokens", "student, 2 tokens", "student")]
    assert len(set(kept)) == 3
    plain = distil(make_spec(tmp_path / "plain"), "train.max_steps=1").result.checkpoint
    with pytest.raises(SpecError, match="no sequence of tokens") as error:
        evaluate(spec, [f"evaluate.checkpoint={plain}"])
    assert error.value.problems[0].where == "evaluate.num_tokens"
