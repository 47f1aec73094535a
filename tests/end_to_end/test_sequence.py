"""A student whose map is made from a sequence of tokens: fidelity rises with the tokens that are kept."""

from __future__ import annotations

import pytest

from radioplat.errors import SpecError
from radioplat.tasks.evaluate.evaluate import evaluate


def test_fidelity_rises_with_the_tokens(make_spec, distil, tmp_path):
    spec = make_spec(tmp_path)
    kwargs = {"embed_dim": 48, "depth": 3, "num_heads": 3, "decoder_depth": 2}
    spec["model"] = {"backbone": {"type": "radio1d_vit_tiny_patch16", "kwargs": kwargs}}
    spec["train"] = {**spec["train"], "max_steps": 60, "num_epochs": 15, "optim": {"lr": 3e-3}}
    trained = distil(spec, "distill.vitdet.prob=0")
    spec["evaluate"] = {"num_tokens": [1, 2], "baseline": False}
    found = evaluate(spec, [f"evaluate.checkpoint={trained.result.checkpoint}"]).findings.results["fidelity"]
    kept = [found[name]["lite0"]["spatial"].centered for name in ("student, 1 tokens", "student, 2 tokens", "student")]
    print(kept)
    assert kept[0] + 0.01 < kept[1] and kept[1] + 0.01 < kept[2]


def test_only_such_a_student_has_a_number_of_tokens(make_spec, distil, tmp_path):
    trained = distil(make_spec(tmp_path), "train.max_steps=1")
    spec = {**make_spec(tmp_path), "evaluate": {"num_tokens": [4], "checkpoint": trained.result.checkpoint}}
    with pytest.raises(SpecError, match="no sequence of tokens") as error:
        evaluate(spec)
    assert error.value.problems[0].where == "evaluate.num_tokens"
