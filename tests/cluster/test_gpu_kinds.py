"""What names of GPUs tell, as CUDA and as Ray writes them."""

from __future__ import annotations

import pytest

from radioplat.cluster.gpu_kinds import kind_of, kinds_of_cluster


@pytest.mark.parametrize(
    ("name", "capability", "short", "bf16", "peak"),
    [
        ("NVIDIA H100 80GB HBM3", (9, 0), "H100", True, 989e12),
        ("NVIDIA H100 PCIe", (9, 0), "H100", True, 756e12),
        ("NVIDIA H100 NVL", (9, 0), "H100", True, 835e12),
        ("NVIDIA H200 NVL", (9, 0), "H200", True, 835e12),
        ("NVIDIA H200", (9, 0), "H200", True, 989e12),
        ("NVIDIA B200", (10, 0), "B200", True, 2.25e15),
        ("NVIDIA L40S", (8, 9), "L40S", True, 362e12),
        ("NVIDIA L4", (8, 9), "L4", True, 121e12),
        ("NVIDIA A10G", (8, 6), "NVIDIA A10G", True, None),
        ("NVIDIA A100-SXM4-40GB", (8, 0), "A100", True, 312e12),
        ("A100-40G", None, "A100", True, 312e12),
        ("Tesla T4", (7, 5), "T4", False, None),
        ("V100", None, "V100", False, None),
        ("NVIDIA GeForce RTX 3090", (8, 6), "NVIDIA GeForce RTX 3090", True, None),
        ("NVIDIA GeForce RTX 2080", (7, 5), "NVIDIA GeForce RTX 2080", False, None),
        ("some new card", None, "some new card", None, None),
    ],
)
def test_a_name_tells_bf16_and_peak(name, capability, short, bf16, peak):
    kind = kind_of(name, capability)
    assert (kind.name, kind.bf16, kind.peak) == (short, bf16, peak)


@pytest.mark.parametrize(
    ("name", "gib"),
    [("NVIDIA H100 80GB HBM3", 80), ("NVIDIA A100-SXM4-40GB", 40), ("A100-40G", 40), ("A100", 80), ("Tesla T4", 16)],
)
def test_a_name_tells_the_memory_at_most(name, gib):
    assert kind_of(name).memory == gib * 2**30
    assert kind_of("NVIDIA GeForce RTX 3090").memory is None


def test_nodes_of_a_cluster_tell_their_kinds():
    names = ["CPU", "GPU", "accelerator_type:T4", "accelerator_type:H100", "accelerator_type:TPU-V4", "node:1.2.3.4"]
    assert [kind.name for kind in kinds_of_cluster(names)] == ["H100", "T4"]
    assert [kind.name for kind in kinds_of_cluster(names, ["accelerator_type:H100"])] == ["H100"]
    assert [kind.name for kind in kinds_of_cluster(names, ["student_node"])] == ["H100", "T4"]
    assert kinds_of_cluster(["CPU", "GPU"]) == ()
