"""Section ``quantize``: TAO's as printed, and what contradicts itself."""

from __future__ import annotations

import pytest

from radioplat.spec.checks.tasks.export import export_problems
from radioplat.spec.checks.tasks.quantize import calibration_split, quantize_problems
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.number_formats import formats_of

TAO = {
    "model_path": "results/distill/model_latest",
    "results_dir": "results/quantize",
    "backend": "native",
    "mode": "static_ptq",
    "algorithm": "minmax",
    "default_layer_dtype": "native",
    "default_activation_dtype": "native",
    "layers": [{"module_name": "Linear", "weights": {"dtype": "int8"}, "activations": {"dtype": "fp8_e4m3fn"}}],
    "skip_names": ["head"],
    "device": "cuda",
    "backend_kwargs": {},
}
IN_BLOCKS = {"mode": "weight_only_ptq", "default_layer_dtype": "int4"}


def spec(**quantize):
    return load_spec({"quantize": quantize})


def test_a_tao_section_is_read_as_printed():
    asked = spec(**{**TAO, "layers": [{"module_name": "Linear", "weights": {"dtype": "float8_e4m3fn"}}]})
    assert not list(quantize_problems(asked))
    assert formats_of(asked.quantize, None) == (None, None)
    assert formats_of(asked.quantize, asked.quantize.layers[0]) == ("fp8", None)


@pytest.mark.parametrize(
    ("fields", "rest", "ruled"),
    [
        ({}, ("int8", "int8"), None),
        ({"layers": [{"module_name": "a"}]}, (None, None), ("int8", "int8")),
        ({"default_layer_dtype": "fp8_e4m3fn"}, ("fp8", "fp8"), None),
        ({"mode": "weight_only_ptq", "default_layer_dtype": "int4"}, ("int4", None), None),
        ({"default_activation_dtype": "native"}, ("int8", None), None),
        (
            {"default_layer_dtype": "int8", "layers": [{"module_name": "a", "weights": {"dtype": "int4"}}]},
            ("int8", "int8"),
            ("int4", "int8"),
        ),
    ],
)
def test_formats(fields, rest, ruled):
    asked = spec(**fields)
    assert not list(quantize_problems(asked))
    assert formats_of(asked.quantize, None) == rest
    assert ruled is None or formats_of(asked.quantize, asked.quantize.layers[0]) == ruled


@pytest.mark.parametrize(
    ("fields", "where", "said"),
    [
        (TAO, "quantize.layers[0]", "int8 weights cannot be multiplied with fp8 activations"),
        ({"default_layer_dtype": "fp8_e5m2"}, "quantize.default_layer_dtype", "E5M2 is a format of gradients"),
        ({"default_layer_dtype": "int3"}, "quantize.default_layer_dtype", "no format is called 'int3'"),
        ({"default_activation_dtype": "int4"}, "quantize.default_activation_dtype", "activations cannot be int4"),
        (
            {"layers": [{"module_name": "a", "weights": {"dtype": "native"}, "activations": {"dtype": "int8"}}]},
            "quantize.layers[0]",
            "activations alone",
        ),
        ({"backend": "nncf"}, "quantize.backend", "no backend is called 'nncf'"),
        ({"backend_kwargs": {"a": 1}}, "quantize.backend_kwargs", "native has no options"),
        ({"checkpoint": "a", "model_path": "b"}, "quantize.model_path", "is another path"),
        ({"equalize": True, "relu6": True}, "quantize.equalize", "relu6 would then clip"),
        ({**IN_BLOCKS, "block_size": 32}, "quantize.block_size", "engines have no blocks of 32"),
        ({"block_size": 64}, "quantize.block_size", "no layer has 4-bit weights with float activations"),
        ({**IN_BLOCKS, "per_channel": False}, "quantize.per_channel", "have a scale for each block"),
        ({"device": "tpu"}, "quantize.device", "cpu, cuda or cuda:N"),
        ({"device": "cuda:one"}, "quantize.device", "cpu, cuda or cuda:N"),
    ],
)
def test_contradictions(fields, where, said):
    problems = [p for p in quantize_problems(spec(**fields)) if p.where == where]
    assert len(problems) == 1 and said in problems[0].message


def test_ranges_never_come_from_what_is_judged():
    dataset = {name: {"images_dir": f"/data/{name}"} for name in ("train_dataset", "test_dataset")}
    assert calibration_split(load_spec({"dataset": dataset})) == "train"
    dataset["quant_calibration_dataset"] = {"images_dir": "/data/some"}
    assert calibration_split(load_spec({"dataset": dataset})) == "quant_calibration"
    dataset["quant_calibration_dataset"] = dataset["test_dataset"]
    files = {"onnx_file": "a.onnx", "force_ptq": True}, {"onnx_file": "a.onnx", "cpu": "static"}
    found = [next(quantize_problems(load_spec({"dataset": dataset})))]
    found += [next(export_problems(load_spec({"dataset": dataset, "export": asked}))) for asked in files]
    assert len(set(found)) == 1
    problem = found[0]
    assert problem.where == "dataset.quant_calibration_dataset" and "in dataset.test_dataset" in problem.message


def test_one_folder_in_two_spellings_is_one_folder(tmp_path):
    (tmp_path / "test").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "test")
    for spelt in ("test/", "./test", "x/../test", "link"):
        dataset = {"test_dataset": {"images_dir": str(tmp_path / "test")}}
        dataset["quant_calibration_dataset"] = {"images_dir": f"{tmp_path}/{spelt}"}
        assert [p.where for p in quantize_problems(load_spec({"dataset": dataset}))] == [
            "dataset.quant_calibration_dataset"
        ]
    bucket = {"images_dir": "s3://b/x"}
    dataset = {"test_dataset": bucket, "quant_calibration_dataset": {"images_dir": "s3://b/x/../y"}}
    assert not list(quantize_problems(load_spec({"dataset": dataset})))
    dataset["quant_calibration_dataset"] = {"images_dir": "s3://b/x/"}
    assert list(quantize_problems(load_spec({"dataset": dataset})))


def test_train_images_that_are_also_judged_on_measure_no_ranges():
    dataset = {name: {"images_dir": "/data/all"} for name in ("train_dataset", "test_dataset")}
    assert [p.where for p in quantize_problems(load_spec({"dataset": dataset}))] == ["dataset.train_dataset"]
    dataset["quant_calibration_dataset"] = {"images_dir": "/data/some"}
    assert not list(quantize_problems(load_spec({"dataset": dataset})))
