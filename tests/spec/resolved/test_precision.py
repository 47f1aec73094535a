"""The number format of a run is never left open where something is computed."""

from __future__ import annotations

import pytest

from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.precision import precision_of, uses_tf32
from radioplat.spec.resolved.zero import zero_stage
from radioplat.spec.schema.train import Precision


@pytest.mark.parametrize(
    ("given", "precision", "stage"),
    [
        ("auto", Precision.fp32, 0),
        ("fp32", Precision.fp32, 0),
        ("bf16", Precision.bf16, 1),
        ("fp16", Precision.fp16, 1),
    ],
)
def test_what_no_start_has_decided_is_fp32(given, precision, stage):
    train = load_spec(None, [f"train.precision={given}"]).train
    assert train.precision.value == given and precision_of(train) is precision and zero_stage(train) == stage


def test_fast_formats_are_the_defaults_and_tao_keeps_its_own():
    ours, tao = load_spec(None).train, load_spec({"compat": "tao"}).train
    assert (ours.precision, ours.tf32, ours.cudnn.deterministic) == (Precision.auto, None, False)
    assert (tao.precision, tao.tf32, tao.cudnn.deterministic) == (Precision.fp32, False, True)
    detector = {"compat": "tao", "model_name": "rtdetr", "model": {"backbone": "resnet_50"}}
    assert load_spec(detector).train.precision is Precision.fp32 and load_spec(detector).train.cudnn.deterministic
    given = load_spec({"compat": "tao", "train": {"precision": "bf16", "tf32": True}}).train
    assert given.precision is Precision.bf16 and given.tf32 is True


@pytest.mark.parametrize(("given", "used"), [("auto", False), ("true", True), ("false", False)])
def test_tf32_is_used_where_a_start_or_the_spec_says_so(given, used):
    assert uses_tf32(load_spec(None, [f"train.tf32={given}"]).train) is used
