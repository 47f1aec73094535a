"""What is read out of a builder's messages."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from radioplat.exporting.engines.backends.builder_log import EngineLog

# Copied from a build of TensorRT for RTX 1.7.1.116, shortened.
LAYERS = """Layers:
Name: __mye2527_0_myl0_0, LayerType: shape_call, Inputs: [], Constants: [ { Name: a, Datatype: Half } ], Outputs: []
Name: __myl_CastAddMulReplConc_myl0_1, LayerType: kgen, Inputs: [ { Name: images, Datatype: Float }]
Name: __myl_CorrSilu_myl0_2, LayerType: runtime_fusion, Inputs: [ { Name: b, Dimensions: [-1,4], Datatype: Half }]
Name: node_Conv_233_myl0_5, LayerType: correlation, Inputs: [ { Name: c, Datatype: Half }], Constants: [ { a: Float }]
Name: _gemm_mha_v2_myl0_6, LayerType: kgen, Inputs: [ { Name: d, Dimensions: [-1,17,32], Datatype: BFloat16 }]
Name: node_MatMul_1_myl0_7, LayerType: gemm, Inputs: [ { Name: e, Datatype: Novel }], Constants: []
"""


def test_kernels_are_counted_by_the_type_of_their_first_input():
    log = EngineLog()
    log.add("VERBOSE", LAYERS)
    assert Counter(kernel.data_type for kernel in log.kernel_list()) == {"fp16": 2, "bf16": 1, "Novel": 1}


def test_no_kernel_list_is_none():
    log = EngineLog()
    assert log.kernel_list() is None
    log.add("VERBOSE", "Layers:\nin a form nobody has seen")
    assert log.kernel_list() is None


@given(st.text())
def test_any_text_is_survived(text):
    log = EngineLog()
    log.add("VERBOSE", "Layers:" + text)
    log.add("ERROR", text)
    assert log.kernel_list() is None or len(log.kernel_list()) > 0
    assert len(log.reasons()) <= 3


def test_reasons_leave_out_noise_and_repetition_unless_there_is_nothing_else():
    log = EngineLog()
    for text in ("catchCudaError (cudaError 35: no driver)", *["FP32 GEMM is not supported"] * 2):
        log.add("ERROR", text)
    assert log.reasons() == ["FP32 GEMM is not supported"]
    alone = EngineLog()
    alone.add("ERROR", "catchCudaError (cudaError 35: no driver)")
    assert alone.reasons() == ["catchCudaError (cudaError 35: no driver)"]


def test_echo_goes_to_standard_error(capsys):
    log = EngineLog(echo=True)
    log.add("WARNING", "mind this")
    log.add("VERBOSE", "not this")
    assert capsys.readouterr() == ("", "TensorRT WARNING: mind this\n")
