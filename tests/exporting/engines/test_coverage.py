"""Which kernels and layers are quantized, counted from a builder's kernels."""

from __future__ import annotations

from radioplat.exporting.engines.backends.builder_log import EngineLog
from radioplat.exporting.engines.coverage import coverage
from radioplat.exporting.engines.interface import Kernel, WeightLayer
from radioplat.exporting.engines.onnx_input import read_onnx
from radioplat.exporting.qdq.mark import module_of

LAYERS = [
    WeightLayer("node_a", "backbone.a", "int8"),
    WeightLayer("node_b", "backbone.b", "int8"),
    WeightLayer("node_fc", "head", None),
]
A = Kernel("a", "conv_gemm", "int8", ("node_a", "a_DequantizeLinear"))
B = Kernel("b", "conv_gemm", "fp32", ("node_b",))
FC = Kernel("fc", "conv_gemm", "fp16", ("node_fc",))
PRODUCT = Kernel("qk", "conv_gemm", "fp16", ("node_matmul_of_two",))
ATTENTION = Kernel("mha", "attention", "fp16", ("node_attention",))


def test_kernels_of_layers_are_told_from_products_of_activations():
    found = coverage(LAYERS, [A, B, FC, PRODUCT, ATTENTION])
    assert found.kernels == {"int8": 1, "fp32": 1, "fp16": 1} and found.share("int8") == (1, 3)
    assert found.others == {"fp16": 2}
    assert (found.eligible, found.quantized, found.not_quantized) == (3, {"int8": 2}, ["head"])
    assert found.in_float_kernels == ["backbone.b"] and found.unseen == []
    assert found.taken_only_by == {"int8": 1, "fp32": 1}


def test_a_layer_that_no_kernel_names_is_not_taken_for_int8():
    found = coverage(LAYERS[:2], [A, Kernel("b", "conv_gemm", "fp32")])
    assert found.unseen == ["backbone.b"] and found.in_float_kernels == [] and found.taken_only_by == {"int8": 1}


def test_a_layer_of_an_int8_and_a_float_kernel_is_not_in_int8():
    both = Kernel("a2", "conv_gemm", "fp16", ("node_a",))
    found = coverage(LAYERS[:2], [A, both, Kernel("b", "conv_gemm", "int8", ("node_b",))])
    assert found.unseen == [] and found.in_float_kernels == ["backbone.a"] and found.taken_only_by == {"int8": 1}


def test_where_layers_are_not_named_all_products_count_and_nothing_is_said_of_single_ones():
    bare = [Kernel(kernel.name, kernel.kind, kernel.data_type) for kernel in (A, B, FC, PRODUCT, ATTENTION)]
    found = coverage(LAYERS, bare)
    assert found.kernels == {"int8": 1, "fp32": 1, "fp16": 2} and found.others == {"fp16": 1}
    assert found.in_float_kernels is None and found.unseen is None and found.taken_only_by is None


def test_a_builder_that_does_not_tell_is_none_and_not_zero():
    found = coverage(LAYERS, None)
    assert found.kernels is None and found.share("int8") is None and found.in_float_kernels is None
    assert found.quantized == {"int8": 2}


# Lines of TensorRT for RTX 1.7.1.116, shortened: a GEMM with its residual as first input, weights in INT8.
RESIDUAL = (
    "Layers:\nName: node_fc_myl0_8, LayerType: runtime_fusion, "
    "Inputs: [ { Name: r, Dimensions: [-1,64], Datatype: Float, Format: x }, "
    "{ Name: q, Dimensions: [-1,32], Datatype: Int8, Format: x }], "
    "Constants: [ { Name: s, Dimensions: [1], Strides: [1], Datatype: Float }, "
    "{ Name: w, Dimensions: [32,64], Strides: [1,32], Datatype: Int8 }], "
    "Outputs: [ { Name: o, Datatype: Float }], TacticName: t, Metadata: [ONNX Layer: node_fc][ONNX Layer: node_add]"
)


def test_a_fused_residual_does_not_hide_the_type_of_the_product():
    log = EngineLog()
    log.add("VERBOSE", RESIDUAL)
    assert log.kernel_list() == [Kernel("node_fc_myl0_8", "conv_gemm", "int8", ("node_fc", "node_add"), "fp32")]
    assert coverage([], log.kernel_list()).writing == {"fp32": 1} and log.requantizing_count() == 0
    weight_only = EngineLog()
    weight_only.add("VERBOSE", RESIDUAL.replace("-1,32], Datatype: Int8", "-1,32], Datatype: Half"))
    assert weight_only.kernel_list()[0].data_type == "fp32"  # 8-bit weights are not an 8-bit product


def test_layers_go_by_the_names_of_the_students_modules(vit_fp32, conv_int8, conv_fp8):
    modules = [layer.module for layer in read_onnx(vit_fp32.path).layers]
    assert "backbone.blocks.0.attn.qkv" in modules and "backbone.patch_embed.proj" in modules and len(modules) == 15
    assert [layer.module for layer in read_onnx(conv_int8).layers] == ["backbone.a", "backbone.b", "backbone.fc"]
    assert read_onnx(conv_int8).formats == {"int8": 3} and read_onnx(conv_fp8).formats == {"fp8": 3}


def test_scopes_in_another_form_are_no_name(conv_file):
    node = read_onnx(conv_file).model.graph.node[0]
    for text in ("[", "3", "[]", "['x']", "__import__('os')"):
        node.metadata_props[0].value = text
        assert module_of(node) == ""


def test_layers_that_only_round_again_are_counted():
    """Behind the INT8 product that writes floats, as TensorRT for RTX lists it."""
    again = "Name: __myl_MulMinMaxRounCast_1, LayerType: kgen, Inputs: [ { Name: o, Datatype: Float }], Constants: [], "
    for written, count in (("Int8", 1), ("Half", 0)):
        log = EngineLog()
        log.add(
            "VERBOSE", f"{RESIDUAL}\n{again}Outputs: [ {{ Name: p, Datatype: {written} }}], TacticName: t, Metadata: "
        )
        assert log.requantizing_count() == count and log.layer_count() == 2
    assert EngineLog().requantizing_count() is None


def test_kernels_that_write_8_bits_are_told_from_those_that_write_floats():
    kernels = [Kernel("a", "conv_gemm", "int8", (), "int8"), Kernel("b", "conv_gemm", "int8", (), "fp16"), FC]
    found = coverage(LAYERS, kernels, requantizing=1)
    assert found.writing == {"int8": 1, "fp16": 1} and found.requantizing == 1
    assert coverage(LAYERS, [A]).writing is None, "a builder that names no types of outputs"
