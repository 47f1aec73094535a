"""Groups and types of layers as TensorRT, onnxruntime and OpenVINO word them."""

from __future__ import annotations

import json

import pytest

from radioplat.exporting.engines.backends.builder_log import EngineLog
from radioplat.exporting.engines.backends.layer_kinds import group_of
from radioplat.exporting.engines.backends.tensorrt_session import layer_times
from radioplat.exporting.engines.profile import advice


def layer(name: str, kind: str, reads: str, writes: str, key: str = "Format/Datatype") -> dict:
    return {"Name": name, "LayerType": kind, "Inputs": [{key: reads}], "Outputs": [{key: writes}]}


CHANNELS = "Channel major FP16 format where channel % 8 == 0"
WIDE = "Thirty-two wide channel vectorized row major Int8 format"
# Layers that trtexec printed, shortened, and group, input's and output's type. The comment names the thread in
# NVIDIA/TensorRT; RTX: the log of a build by 1.7.1.
RECORDED = [
    (layer("GlobalAveragePool_5", "CaskPooling", CHANNELS, CHANNELS), "pooling and resizing", "fp16", "fp16"),  # 2418
    (layer("Conv_6 + Relu_7", "CaskConvolution", CHANNELS, CHANNELS), "products", "fp16", "fp16"),  # 2418
    (
        layer("Reformatting CopyNode for Input Tensor 0", "Reformat", "Row major linear FP32", "Row major Int8 format"),
        *("conversions", "fp32", "int8"),
    ),  # 4020
    (
        layer("resnetv15_conv0_fwd", "CaskConvActPool", "Row major Int8 format", WIDE),
        "products",
        "int8",
        "int8",
    ),  # 4020
    (
        layer("resnetv15_stage4_conv3_fwd", "CaskConvolution", f"{WIDE}.", f"{WIDE}."),
        "products",
        "int8",
        "int8",
    ),  # 4020
    (layer("p2o.Conv.37", "CaskGemmConvolution", CHANNELS, CHANNELS), "products", "fp16", "fp16"),  # 3583
    (layer("_gemm_mha_v2_myl0_24", "kgen", "Half", "Half"), "attention", "fp16", "fp16"),  # 4397
    (layer("/encoder/dense/MatMul_myl0_25", "gemm", "Half", "Half"), "products", "fp16", "fp16"),  # 4397
    (layer("__myl_Fc_myl0_69", "fusion", "Half", "Half"), "products", "fp16", "fp16"),  # 4397
    (
        layer("__myl_AddCastMeanSubMulMeanAddSqrtDivMulCastMulAdd_myl0_26", "kgen", "Half", "Half"),
        *("normalization", "fp16", "fp16"),
    ),  # 4397
    (layer("node_a_myl0_2", "correlation", "Int8", "Float", "Datatype"), "products", "int8", "fp32"),  # RTX
    (layer("__myl_CorrSilu_myl0_2", "runtime_fusion", "Half", "Half", "Datatype"), "products", "fp16", "fp16"),  # RTX
    (
        layer("__myl_MulAddReluMulMinMaxRounCast_myl0_3", "kgen", "Float", "Int8", "Datatype"),
        *("conversions", "fp32", "int8"),
    ),  # RTX
    (layer("__myl_MulAdd_myl0_7", "kgen", "Float", "Float", "Datatype"), "element-wise", "fp32", "fp32"),  # RTX
    (layer("_gemm_mha_v2_myl0_6", "kgen", "BFloat16", "Int8", "Datatype"), "attention", "bf16", "int8"),  # RTX
]


@pytest.mark.parametrize(("recorded", "group", "reads", "writes"), RECORDED, ids=lambda value: None)
def test_recorded_layers_of_tensorrt(recorded, group, reads, writes):
    (found,) = layer_times(json.dumps({"Layers": [recorded]}), {recorded["Name"]: 6.0}, 3)
    assert (found.milliseconds, found.reads, found.writes) == (2.0, reads, writes)
    assert group_of(found.kind, found.name) == group


def test_an_engine_without_details_has_times_and_no_types():
    rows = layer_times('{"Layers": ["conv"], "Bindings": []}', {"conv": 1.0}, 1)
    assert [(row.name, row.kind, row.reads) for row in rows] == [("conv", "", "")] and group_of("") == "other"


def test_int8_convolutions_of_tensorrt_are_no_unfused_activations():
    rows = [recorded for recorded, group, *_ in RECORDED if group == "products"]
    layers = layer_times(json.dumps({"Layers": rows}), {row["Name"]: 1.0 for row in rows}, 1)
    assert not [line for line in advice(layers, {"data_type": "int8"}) if "element-wise" in line]


def test_the_builder_s_log_counts_what_the_profile_calls_products():
    lines = [
        f"Name: {row['Name']}, LayerType: {row['LayerType']}, Inputs: [ {{ Datatype: Half }}], Outputs: []"
        for row, *_ in RECORDED
    ]
    log = EngineLog()
    log.add("VERBOSE", "\n".join(["Layers:", *lines]))
    counted = [kernel.name for kernel in log.kernel_list() or []]
    assert counted == [row["Name"] for row, group, *_ in RECORDED if group in ("products", "attention")]


# As onnxruntime 1.31 and OpenVINO 2026.4 call them.
CPU = {
    "products": ["Conv", "FusedConv", "QLinearConv", "QGemm", "MatMulIntegerToFloat", "DynamicQuantizeMatMul"],
    "attention": ["ScaledDotProductAttention", "MHA", "QAttention"],
    "conversions": ["Reorder", "ReorderInput", "Convert", "QuantizeLinear", "FakeQuantize", "DynamicQuantizeLinear"],
    "normalization": ["MVN", "LayerNormalization", "Softmax", "Reduce", "ReduceMean"],
    "pooling and resizing": ["Pooling", "MaxPool", "QLinearGlobalAveragePool", "Resize", "Interpolate"],
    "copies": ["Transpose", "Reshape", "Concatenation", "Split", "StridedSlice", "Expand", "Gather", "Broadcast"],
    "element-wise": ["Eltwise", "Subgraph", "Math", "BiasGelu", "QLinearAdd", "Mul", "Clip", "HardSigmoid", "Exp"],
    "other": ["NonMaxSuppression", "GridSample", "If", "ShapeOf", "PluginV2"],
}


@pytest.mark.parametrize("group", CPU)
def test_layers_of_the_libraries_for_cpus(group):
    assert {kind: group_of(kind) for kind in CPU[group]} == dict.fromkeys(CPU[group], group)
