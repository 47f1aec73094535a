"""The table of number formats: against torch and onnx, and that a new row is all that most of the code needs."""

from __future__ import annotations

import subprocess
import sys
import textwrap

import ml_dtypes
import onnx
import pytest
import torch

from radioplat.models.quantized.fake_quantize import NumberFormat
from radioplat.spec.resolved.number_formats import ACTIVATIONS, DATA_TYPES, FLOATS, QUANTIZED, SPELLINGS, engine_type

ROWS = pytest.mark.parametrize("row", DATA_TYPES.values(), ids=DATA_TYPES)


@ROWS
def test_bits_and_highest_values_are_those_of_the_onnx_type(row):
    dtype = onnx.helper.tensor_dtype_to_np_dtype(getattr(onnx.TensorProto, row.onnx_type))
    facts = (ml_dtypes.finfo if row.is_float else ml_dtypes.iinfo)(dtype)
    assert (facts.bits, float(facts.min), float(facts.max)) == (row.bits, row.lowest, row.highest)
    if row.is_float:
        assert facts.nexp == row.exponent_bits


@ROWS
def test_torch_holds_every_value_in_its_type(row):
    dtype = getattr(torch, row.torch_type)
    ends = torch.tensor([row.lowest, 0.0, row.highest], dtype=torch.float64)
    assert dtype.is_floating_point == row.is_float
    assert torch.equal(ends.to(dtype).double(), ends)


@pytest.mark.parametrize("name", QUANTIZED)
def test_the_first_operator_set_is_the_one_whose_quantize_linear_knows_it(name):
    row = DATA_TYPES[name]
    written = f"tensor({row.onnx_type.lower()})"

    def known(opset: int) -> bool:
        schema = onnx.defs.get_schema("QuantizeLinear", opset)
        outputs = schema.outputs[0].type_str
        types = next(c.allowed_type_strs for c in schema.type_constraints if c.type_param_str == outputs)
        # Scales of each channel, which weights have, came with set 13.
        return written in types and "axis" in schema.attributes

    assert known(row.least_opset) and not known(row.least_opset - 1)


def test_what_is_quantized_has_a_form_in_torch_and_an_engine():
    assert [format.value for format in NumberFormat] == list(QUANTIZED)
    assert {*FLOATS, *QUANTIZED} == set(DATA_TYPES) and not set(FLOATS) & set(QUANTIZED)
    assert {engine_type(name) for name in QUANTIZED} == set(ACTIVATIONS)
    assert ACTIVATIONS == {"int8": ("int8", "int4"), "fp8": ("fp8",)}
    assert list(SPELLINGS) == ["int8", "int4", "fp8", "fp8_e4m3fn", "float8_e4m3fn"]
    assert engine_type("uint8") == "uint8"  # of an ONNX file that others wrote


def test_the_table_needs_neither_torch_nor_onnx():
    code = "import sys, radioplat.spec.resolved.number_formats; sys.exit(bool({'torch', 'onnx'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


NEW_ROW = """
    import pathlib, sys, types

    name = "radioplat.spec.resolved.number_formats"
    source = pathlib.Path(sys.argv[1]).read_text()
    row = 'DataType("fp4", 4, 2, 6.0, "float4_e2m1fn_x2", "FLOAT4E2M1", 23, "fp4", ("nvfp4",), first_sm=100, '
    row += 'first_tensorrt=11, builder_flag="FP4"),'
    changed = source.replace("DataType(  # E4M3", row + " DataType(  # E4M3")
    assert changed != source
    module = sys.modules[name] = types.ModuleType(name)
    exec(compile(changed, name, "exec"), module.__dict__)

    from onnx import TensorProto, helper
    from radioplat.errors import EngineError
    from radioplat.exporting.onnx.opset import require_readable
    from radioplat.exporting.engines.onnx_input import parse_engine_type
    from radioplat.exporting.engines.onnx_input import weight_layers
    from radioplat.exporting.engines.targets import choose_targets
    from radioplat.spec.checks.tasks.quantize import quantize_problems
    from radioplat.spec.loading.load import load_spec
    from radioplat.spec.resolved.tensorrt_version import newest_opset

    def refused(call, *arguments):
        try:
            call(*arguments)
        except EngineError as error:
            return str(error)

    asked = ["quantize.default_layer_dtype=nvfp4", "quantize.algorithm=entropy"]
    assert not [p for p in quantize_problems(load_spec(None, asked)) if "fp4" in str(p)]
    assert module.formats_of(load_spec(None, asked).quantize, None) == ("fp4", "fp4")
    assert any("cannot be multiplied" in p.message for p in quantize_problems(
        load_spec(None, [*asked, "quantize.default_activation_dtype=int8"])))
    assert parse_engine_type("FP4") == "fp4"
    assert choose_targets(["SM89", "SM120"], ["auto"], ["fp4"], "TensorRT") == ["SM120"]
    assert "FP4 needs SM100 or later" in refused(choose_targets, ["SM89"], ["SM89"], ["fp4"], "TensorRT")
    assert "has no fp4" in refused(require_readable, "10.3", "fp32", ["fp4"], True)
    assert refused(require_readable, "11.5", "fp32", ["fp4"], True) is None
    assert newest_opset((10, 3, 0), ["fp4"]) == 20 and newest_opset((11, 0, 0), ["fp4"]) == 24

    weight = helper.make_tensor("w", TensorProto.FLOAT4E2M1, [4, 4], [0.0] * 16)
    scale = helper.make_tensor("s", TensorProto.FLOAT, [], [1.0])
    zero = helper.make_tensor("z", TensorProto.FLOAT4E2M1, [], [0.0])
    nodes = [
        helper.make_node("QuantizeLinear", ["x", "s", "z"], ["xq"]),
        helper.make_node("DequantizeLinear", ["xq", "s", "z"], ["xd"]),
        helper.make_node("DequantizeLinear", ["w", "s", "z"], ["wd"]),
        helper.make_node("MatMul", ["xd", "wd"], ["y"]),
    ]
    floats = [helper.make_tensor_value_info(n, TensorProto.FLOAT, [1, 4]) for n in "xy"]
    graph = helper.make_graph(nodes, "g", floats[:1], floats[1:], [weight, scale, zero])
    assert [layer.format for layer in weight_layers(helper.make_model(graph))] == ["fp4"]
"""


def test_a_new_row_is_known_to_checks_builders_and_graphs():
    """The table's own text with a row more, in a process of its own: nothing else is changed."""
    from radioplat.spec.resolved import number_formats

    code = textwrap.dedent(NEW_ROW)
    done = subprocess.run([sys.executable, "-c", code, number_formats.__file__], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
