"""torch's switches follow the spec, and a run on CPUs leaves fp32 as it is."""

from __future__ import annotations

import pytest
import torch

from radioplat.models.fp32_arithmetic import set_fp32_arithmetic
from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.precision import fp32_arithmetic_of


@pytest.fixture(autouse=True)
def as_before():
    """Other tests of this process keep the switches that they had."""
    cudnn = torch.backends.cudnn
    before = torch.get_float32_matmul_precision(), cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic
    yield
    torch.set_float32_matmul_precision(before[0])
    cudnn.allow_tf32, cudnn.benchmark, cudnn.deterministic = before[1:]


def set_switches(overrides: list[str], device: str) -> None:
    set_fp32_arithmetic(fp32_arithmetic_of(load_spec(None, overrides).train), torch.device(device))


def test_a_run_of_a_version_without_the_field_keeps_torch_s_own_switches():
    before = torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32
    assert before[1], "torch multiplies convolutions as TF32 by default"
    set_switches([], "cuda")
    assert (torch.get_float32_matmul_precision(), torch.backends.cudnn.allow_tf32) == before


@pytest.mark.parametrize(("tf32", "matmul"), [("true", "high"), ("false", "highest")])
def test_tf32_on_a_gpu(tf32, matmul):
    """The switches themselves need no GPU."""
    set_switches([f"train.tf32={tf32}"], "cuda")
    assert torch.get_float32_matmul_precision() == matmul
    assert torch.backends.cudnn.allow_tf32 is (tf32 == "true")


def test_a_cpu_computes_fp32():
    torch.set_float32_matmul_precision("highest")
    set_switches(["train.tf32=true"], "cpu")
    assert torch.get_float32_matmul_precision() == "highest"


@pytest.mark.parametrize(("benchmark", "deterministic"), [(False, False), (True, False), (False, True)])
def test_cudnn(benchmark, deterministic):
    fields = [f"train.cudnn={{benchmark: {benchmark}, deterministic: {deterministic}}}"]
    set_switches(fields, "cpu")
    assert torch.backends.cudnn.benchmark is benchmark and torch.backends.cudnn.deterministic is deterministic
