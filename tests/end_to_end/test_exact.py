"""With ``train.reduction: exact`` weights are the same, bit for bit, at one, two and three workers, and after pauses.

Workers are processes of one process group without Ray; ``python -m benchmarks.exact`` kills and resizes them on Ray.
"""

from __future__ import annotations

import hashlib
import os
import pickle
from pathlib import Path

import pytest
import torch
from forked import run_ranks

STEPS, PAUSE = 8, 3
STUDENTS = {"cnn": {"type": "test_efficientnet"}, "vit": {"type": "test_vit", "kwargs": {"img_size": 64}}}


def work(run_file: Path) -> None:
    """Train the run of the file in the worker that the environment names."""
    from radioplat.data.loading.run_data import open_reader
    from radioplat.data.loading.threads import load_micro_batches
    from radioplat.teachers.serving.client import InlineTeacher
    from radioplat.training.guards.pause import Paused
    from radioplat.training.loop import process_group
    from radioplat.training.loop.worker import run_worker
    from radioplat.training.watch.rank_context import RankContext

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    torch.set_num_threads(1)
    process_group.join("gloo")
    run, stop = pickle.loads(run_file.read_bytes())

    def batches(start: int, end: int, schedule):
        wanted = (n for step in range(start, end) for n in schedule.of_rank(step, rank))
        return load_micro_batches(open_reader(*run.reader_arguments), wanted, threads=1, prefetch=2)

    clients = {t.name: InlineTeacher(t, run.grids[t.name], "cpu", world) for t in run.teachers}
    pauses = _PauseAfter(stop) if stop else None
    try:
        run_worker(run, RankContext(rank, world, torch.device("cpu")), clients, batches, pauses)
    except Paused:
        assert stop


class _PauseAfter:
    """A request to pause after a number of steps, as :class:`radioplat.training.guards.pause.Pauses` reports one."""

    def __new__(cls, steps: int):
        from radioplat.training.guards.pause import Paused, Pauses

        class After(Pauses):
            """Pauses once."""

            def requested(self, record):
                return Paused("stopped", "the test") if record.step + 1 == steps else None

        return After()


@pytest.fixture(scope="module")
def trained(make_spec, weights, tmp_path_factory):
    """trained(student, reduction, worlds): the hash of the last checkpoint's weights and average, after parts of the
    run at these numbers of workers."""
    from radioplat.design.run import keep_data
    from radioplat.launch.preflight.steps import prepare
    from radioplat.spec.loading.load import load_spec

    def train(student: str, reduction: str, worlds: tuple[int, ...], sizes: tuple[int, ...] = (), **settings) -> str:
        folder = tmp_path_factory.mktemp("exact")
        teacher = {
            "model": {"backbone": {"type": "test_vit", "kwargs": {"img_size": 64}}},
            "pretrained_teacher_model_path": str(weights["vit"]), "mode": "combo", "summary_loss_type": "angle",
        }  # fmt: skip
        spec = make_spec(folder / "run", {
            "train": {"engine": "ddp", "reduction": reduction, "threads": 1, "num_gpus": 1, "max_steps": STEPS,
                      "global_batch_size": 24, "enable_ema": True, "ema_decay": 0.5, "precision": "fp32", **settings},
            "distill": {"teacher": [{"name": "lite0", **teacher}, {"name": "vit", **teacher}], "balance": "adaloss",
                        "target_norm": {"type": "phi_s", "fit": "running", "refresh_steps": 2}},
        })  # fmt: skip
        spec["dataset"]["batch_size"] = 4
        if sizes:
            spec["dataset"]["augmentation"] = {"multi_scales": list(sizes)}
        spec["model"]["backbone"] = STUDENTS[student]
        run, data = prepare(load_spec(spec), "distill", folder / "run" / "distill")
        keep_data(run, data)
        for i, world in enumerate(worlds):
            stop = PAUSE * (i + 1) if i + 1 < len(worlds) else 0
            (folder / "run.pkl").write_bytes(pickle.dumps((run, stop)))
            run_ranks(work, folder / "run.pkl", world=world, seconds=600, WANDB_MODE="disabled")
        last = max(run.folder.glob("model_epoch_*"))
        files = [last / "student.safetensors", last / "ema.safetensors"]
        return " ".join(hashlib.sha256(file.read_bytes()).hexdigest()[:16] for file in files)

    return train


DDP = {"engine": "ddp"}
ZERO_0, ZERO_1 = ({"engine": "deepspeed", "zero_stage": stage} for stage in (0, 1))
BF16 = {"precision": "bf16", "clip_grad_norm": 0.1}


@pytest.mark.timeout(900)
@pytest.mark.parametrize(
    ("student", "settings"),
    [
        pytest.param("cnn", DDP, id="cnn-ddp", marks=pytest.mark.proof),
        pytest.param("vit", ZERO_1 | BF16, id="vit-zero-1-bf16", marks=pytest.mark.proof),
        pytest.param("vit", DDP, id="vit-ddp", marks=pytest.mark.proof),
        pytest.param("cnn", ZERO_1, id="cnn-zero-1", marks=pytest.mark.proof),
        pytest.param("cnn", ZERO_0, id="cnn-zero-0", marks=pytest.mark.proof),
        pytest.param("vit", DDP | BF16, id="vit-ddp-bf16", marks=pytest.mark.proof),
    ],
)
def test_weights_do_not_depend_on_the_number_of_workers(trained, student, settings):
    one = trained(student, "exact", (1,), **settings)
    assert trained(student, "exact", (2,), **settings) == one
    assert trained(student, "exact", (3, 1, 2), **settings) == one
    if "precision" not in settings:  # few gradients in bf16 have the same fp32 sum in any order
        assert trained(student, "fast", (2,), **settings) != trained(student, "fast", (1,), **settings)


@pytest.mark.timeout(600)
def test_weights_do_not_depend_on_which_worker_gets_which_micro_batch(trained):
    """Of micro-batches of three sizes; workers get unequal numbers of them."""
    sizes = (32, 64, 128)
    even = trained("cnn", "exact", (2,), sizes, **DDP, dealing="even")
    assert trained("cnn", "exact", (2,), sizes, **DDP, dealing="cost") == even
