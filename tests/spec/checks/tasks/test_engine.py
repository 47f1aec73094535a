"""Contradictions in section ``gen_trt_engine.tensorrt``."""

from __future__ import annotations

import pytest

from radioplat.spec.checks.tasks.engine import engine_problems
from radioplat.spec.schema.engine import CalibrationConfig, TensorRTConfig

INT8 = {"data_type": "INT8"}


@pytest.mark.parametrize(
    ("fields", "where", "says"),
    [
        ({"max_batch_size": 4}, "{min,opt,max}_batch_size", "not 1, 8, 4"),
        ({"layers_precision": ["a:fp16", "fp16"]}, "layers_precision[1]", "pattern:fp16"),
        ({"layers_precision": ["a:fp8"]}, "layers_precision[0]", "quantize.layers"),
        ({"layers_precision": ["a:b:half"]}, "layers_precision[0]", "Valid: fp32, fp16, bf16"),
        ({"calibration": CalibrationConfig(cal_cache_file="c")}, "calibration", "ranges are for int8, not fp32"),
        ({**INT8, "calibration": CalibrationConfig(cal_batches=2)}, "calibration.cal_batches", "cal_image_dir"),
        (
            {**INT8, "calibration": CalibrationConfig(cal_json_file="j", cal_cache_file="c")},
            "calibration.cal_json_file",
            "two sources",
        ),
    ],
)
def test_rule(fields, where, says):
    problems = list(engine_problems(TensorRTConfig(**fields)))
    assert [problem.where for problem in problems] == [f"gen_trt_engine.tensorrt.{where}"]
    assert says in str(problems[0])


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"layers_precision": ["*:fp16", "a.b*:FP32", "/layer:1:bf16"]},
        {**INT8, "calibration": CalibrationConfig(cal_image_dir=["d"], cal_cache_file="c", cal_batches=4)},
        {**INT8, "calibration": CalibrationConfig(cal_json_file="j")},
    ],
)
def test_what_goes_together(fields):
    assert list(engine_problems(TensorRTConfig(**fields))) == []
