"""What `plan` says of runs on GPUs, and that it says nothing of it for runs on CPUs."""

from __future__ import annotations

from pathlib import Path

import pytest

from radioplat.cluster.gpu_kinds import kind_of
from radioplat.cluster.resources import Resources
from radioplat.common import terminal
from radioplat.common.terminal import size
from radioplat.design.models import design_models
from radioplat.launch.preflight import memory, workers, workload
from radioplat.launch.preflight.preflight import Preflight
from radioplat.spec.loading.load import load_spec

STEPS = (
    workload.arithmetic,
    workload.gpus,
    workload.operations,
    workload.pace,
    workload.sent,
    memory.memory,
)
H100 = Resources(64, 8, (kind_of("H100"),))


def told(*overrides: str, resources: Resources = H100, on_ray: bool = True) -> Preflight:
    """A ViT-B student and a ViT-B teacher at 224 pixels, and another one for summaries."""
    backbone = {"backbone": {"type": "vit_base_patch16_224"}}
    entries = [
        {"name": "a", "mode": "spatial", "loss_type": "MSE", "model": backbone},
        {"name": "b", "mode": "summary", "loss_type": "MSE", "model": backbone},
    ]
    tree = {
        "model": backbone,
        "dataset": {"img_size": 224, "batch_size": 256},
        "train": {"precision": "bf16", "tf32": True, "num_gpus": 4},
        "distill": {"use_mlp": False, "teacher": entries},
    }
    spec = load_spec(tree, list(overrides))
    found = Preflight(spec, "distill", Path("nowhere"), resources=resources, on_ray=on_ray)
    found.models = design_models(spec, "distill")
    for step in STEPS:
        found.take(step)
    assert not found.problems
    return found


def test_a_run_on_gpus_in_closed_form():
    """A ViT-B has 35.1 GFLOP an image forward; a linear head of a map 0.23, times 3 with backward."""
    facts = told().facts
    assert facts["GFLOP an image"] == "student 106 forward and backward, a 35, b 35"
    assert facts["GPUs"] == "6 of 8: 4 worker(s) + a 1 x 1 + b 1 x 1"
    positions, width = 14 * 14, 768
    pixels = 3 * 224**2 / 1e3
    assert facts["sent per image"] == (
        f"a {pixels:.0f} kB of pixels and {positions * width * 2 / 1e3:.0f} kB of features, "
        f"b {pixels:.0f} kB of pixels and {width * 2 / 1e3:.0f} kB of features"
    )
    # 4 workers of 106 ask 1.3 replicas of 35: those wait a quarter of the time.
    assert facts["replicas"] == "a 1 (1.3 keep up with 4 worker(s)), b 1 (1.3 keep up with 4 worker(s))"
    assert facts["time of the workers' GPUs, at best"] == "the student 75%, waiting for teachers 25%"
    rate = 989e12 * 0.5 / 35.126e9  # of one replica
    assert facts["rate, at best"].startswith(f"{rate:,.0f} images/s in all")
    assert facts["rate, at best"].endswith("an MFU of 38% for the student")
    assert facts["queue"].startswith("teachers work up to 4 micro-batch(es) ahead")
    assert facts["arithmetic"].startswith("bf16 by DeepSpeed, ZeRO stage 1; what is fp32 is computed as TF32")


def test_what_is_compiled_is_printed():
    for asked in (False, True):
        found = told(f"train.compile={asked}", "distill.mesa.weight=0.1", "train.enable_ema=true")
        found.take(workers.compiling)
        expected = "the backbone, the head and losses of each of a, b, the MESA loss; graphs"
        assert found.facts.get("compiled", "").startswith(expected) == asked


def test_replicas_that_keep_up_are_not_warned_of():
    (warning,) = told().warnings
    assert warning.startswith("teachers.a.replicas is 1, teachers.b.replicas is 1, too few to keep up")
    assert "the workers wait 25% of the time" in warning
    enough = told("teachers={a: {replicas: 2}, b: {replicas: 2}}")
    assert not enough.warnings
    assert enough.facts["time of the workers' GPUs, at best"] == "the student 100%"
    assert "GPUs" in enough.facts and enough.facts["GPUs"].startswith("8 of 8")


def test_images_that_no_gpu_can_hold_are_named_with_the_smallest_gpu():
    """A ViT-B keeps some 66 MiB of an image of 224 px in bf16, and 16 GiB of 256."""
    small = Resources(64, 8, (kind_of("H100"), kind_of("P4")))
    assert not [line for line in told(resources=H100).warnings if "a worker needs" in line]
    (warning,) = [line for line in told(resources=small).warnings if "a worker needs" in line]
    assert "for a micro-batch of 256 images of 224 px, and P4 has at most" in warning
    assert "lower dataset.batch_size" in warning
    less = told("train.grad_checkpointing=true", resources=small)
    assert not [line for line in less.warnings if "a worker needs" in line]


def test_weights_that_the_smallest_gpu_cannot_hold_are_named_at_zero_3_too():
    large = ("model.backbone.type=vit_giant_patch14_reg4_dinov2", "dataset.batch_size=1", "train.global_batch_size=4")
    for stage in (1, 3):
        found = told(*large, f"train.zero_stage={stage}", resources=Resources(64, 8, (kind_of("H100"), kind_of("P4"))))
        lines = [line for line in found.warnings if "a worker needs" in line]
        assert len(lines) == (stage == 1) and all("raise train.zero_stage" in line for line in lines)


def test_inline_teachers_take_the_workers_time_and_send_nothing():
    inline = told("teachers={a: {placement: inline}, b: {placement: inline}}")
    assert inline.facts["time of the workers' GPUs, at best"] == "the student 60%, inline teachers 40%"
    assert inline.facts["GPUs"] == "4 of 8: 4 worker(s) with a, b inline"
    assert not inline.facts.keys() & {"sent per image", "replicas"} and not inline.warnings
    weights = 2 * 2 * 85.8e6  # two teachers in bf16
    assert f"{weights / 1e6:.0f} MB for teachers" in inline.facts["memory of a worker's GPU"]
    assert "validation" not in inline.facts["memory of a worker's GPU"]
    copied = told("dataset.knn_validation=true").facts["memory of a worker's GPU"]
    assert copied.endswith(f"; between steps, a validation adds {2 * 86.9:.0f} MB for the student's copy")
    spec = inline.spec
    answers = sum(
        2 * (info.summary_dim + rows * columns * info.spatial_dim)
        for info, (rows, columns) in ((inline.models.infos[n], inline.models.grids[n]) for n in "ab")
    )
    pixels = 3 * spec.dataset.img_size**2
    waiting = spec.dataset.batch_size * (3 * (pixels + answers) + 4 * answers)
    assert f"{terminal.size(waiting)} for micro-batches" in inline.facts["memory of a worker's GPU"]
    # A step whose micro-batches may have to be computed again holds them all: four of each worker here.
    exact = ("train.reduction=exact", f"train.global_batch_size={4 * 4 * spec.dataset.batch_size}")
    whole = told(*exact, "teachers={a: {placement: inline}, b: {placement: inline}}").facts["memory of a worker's GPU"]
    step = spec.dataset.batch_size * ((2 + 4) * (pixels + answers) + 4 * answers)
    assert f"{terminal.size(step)} for micro-batches" in whole
    local = told("train.num_gpus=1", on_ray=False, resources=Resources(8, 1, (kind_of("H100"),)))
    assert local.facts["GPUs"] == "1 of 1: 1 worker(s) with a, b inline"


def test_the_memory_for_checkpoints_is_a_copy_of_each_shard_and_whole_tensors_on_the_first_worker():
    sharded = told("train.zero_stage=2", "train.enable_ema=true")
    quarter, whole = (size(bytes_ * sharded.models.student_parameters) for bytes_ in (4, 16))
    assert sharded.facts["memory for checkpoints"] == (
        f"{quarter} on the GPU, if 10% of its memory then stay free, and {whole} of the first worker's host memory, "
        f"{quarter} of each other one's"
    )
    apart = told("train.zero_stage=2", "train.offload=true").facts["memory for checkpoints"]
    assert "GPU" not in apart and "of each other one's" in apart
    assert told("train.engine=ddp").facts["memory for checkpoints"].endswith("of the first worker's host memory")


@pytest.mark.parametrize(
    ("overrides", "words"),
    [
        (["train.precision=fp32"], "train.precision is fp32: GPUs multiply it at half the rate"),
        (["train.precision=fp32", "train.tf32=false"], "at a tenth of the rate"),
        (["train.tf32=false"], "train.tf32 is not true"),
        (["train.cudnn.deterministic=true", "model.backbone.type=resnet50"], "train.cudnn.deterministic is true"),
        (["dataset.batch_size=8"], "dataset.batch_size is 8"),
    ],
)
def test_slow_settings_are_warned_of(overrides, words):
    enough = "teachers={a: {replicas: 99}, b: {replicas: 99}}"
    assert not told(enough).warnings
    assert any(words in warning for warning in told(enough, *overrides).warnings)


def test_what_is_not_known_is_not_said():
    enough = "teachers={a: {replicas: 99}, b: {replicas: 99}}"
    assert not told(enough, "dataset.batch_size=8", "train.engine=ddp").warnings  # DeepSpeed's Python alone is slow
    assert not told(enough, "train.cudnn.deterministic=true").warnings  # a ViT has one convolution, of its patches
    old = Resources(64, 8, (kind_of("T4"),))
    slow = told(enough, "train.precision=fp32", "dataset.batch_size=32", resources=old)
    assert not slow.warnings and "rate, at best" not in slow.facts  # nothing faster is there
    assert "rate, at best" not in told(enough, resources=Resources(64, 8)).facts
    assert "rate, at best" not in told(enough, "train.precision=fp32").facts


def test_runs_on_cpus_are_told_nothing_but_the_gpus_that_several_workers_would_take():
    cpus = Resources(8, 0)
    assert not told("train.num_gpus=1", resources=cpus).facts
    several = told("teachers.a.num_gpus=0.5", resources=cpus)
    assert several.facts == {"GPUs": "5.5 on a cluster that has some: 4 worker(s) + a 1 x 0.5 + b 1 x 1"}
    assert not several.warnings and several.work is None
