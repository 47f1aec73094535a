"""A run with every part of the recipe at once: the same locally and on Ray, in one go and broken off.

Parts that each hold alone can still meet badly: a binding inside a windowless stage, an average of spectral weights, a
balance that a dropped teacher moves. Losses are compared term by term, so that a failure says which part moved.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import safetensors.torch
import timm
import torch

from radioplat.models.pretrained.source import read_source
from radioplat.tracking.follow import StepEvent
from radioplat.tracking.results import TaskFolder
from radioplat.training.accounting.prove import prove_run
from radioplat.training.checkpoints.checkpoint import verified_state

pytestmark = [pytest.mark.ray, pytest.mark.timeout(300)]
STEPS, BROKEN_AT = 6, 2  # in the middle of the first stage of three steps
EVERY = ("train.checkpoint_interval=2", "train.checkpoint_interval_unit=step")


@pytest.fixture(scope="module")
def two_vits(tmp_path_factory) -> list[dict]:
    """Two seeded ViTs as teachers: summary by angle, map by BALANCED; one of them with Gram beside it."""
    folder, found = tmp_path_factory.mktemp("vits"), []
    for i, name in enumerate(("test_vit", "test_vit2")):
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(i)
            tensors = timm.create_model(name, num_classes=0).state_dict()
        safetensors.torch.save_file(tensors, folder / f"{name}.safetensors")
        found.append(
            {
                "name": f"t{i}",
                "model": {"backbone": {"type": name}},
                "pretrained_teacher_model_path": str(folder / f"{name}.safetensors"),
                "mode": "combo",
                "loss_type": "BALANCED",
                "summary_loss_type": "angle",
            }
        )
    found[1]["extra_losses"] = [{"type": "gram", "kind": "spatial", "weight": 0.1}]
    return found


@pytest.fixture(scope="module")
def everything(make_spec, two_vits) -> Callable[..., dict]:
    """everything(results_dir, workers) -> the spec; one worker means local mode."""

    def make(results_dir: Path, workers: int) -> dict:
        changes = {
            "model": {"backbone": {"drop_path": 0.2, "spectral_reparam": True}},
            "dataset": {"knn_validation": False},
            "train": {
                "zero_stage": 1,
                "num_gpus": workers,
                "enable_ema": True,
                "ema_decay": 0.8,
                "regularizer": {"type": "L2", "weight": 1e-4},
                "optim": {"optim": "lamb", "projector_lr": 2e-3, "weight_decay": 0.02},
            },
            "distill": {
                "target_norm": {"type": "phi_s", "fit_batches": 3},
                "balance": "loss_scale",
                "teacher_drop_prob": 0.5,
                "bindings": [
                    {
                        "teacher": "t0",
                        "teacher_module_name": "blocks.2",
                        "student_module_name": "blocks.1",
                        "criterion": "MSE",
                        "weight": 0.5,
                    }
                ],
                "stages": [{"steps": 3, "img_size": 64}, {"steps": 3, "img_size": 96, "lr": 5e-4}],
                "then": ["export"],
            },
            "export": {"format": "radio"},
            "cluster": {"mode": "local" if workers == 1 else "ray", "cpus_per_decode": 0.25},
        }
        spec = make_spec(results_dir, changes)
        spec["distill"]["teacher"] = two_vits
        spec["teachers"] = {teacher["name"]: {"num_cpus": 0.25} for teacher in two_vits}
        return spec

    return make


@pytest.fixture(scope="module")
def on_ray(ray_environment):
    """In it runs start clusters that are quick enough for a test."""
    with pytest.MonkeyPatch.context() as patch:
        for name, value in ray_environment.items():
            patch.setenv(name, value)
        yield


@pytest.fixture(scope="module")
def quiet(everything, distil, tmp_path_factory):
    """Six steps in one go, in this process."""
    return distil(everything(tmp_path_factory.mktemp("quiet"), 1), *EVERY)


@pytest.fixture(scope="module")
def two_workers(everything, distil, on_ray, two_vits, tmp_path_factory):
    """The same on Ray: two workers, three micro-batches a step, so that one of them is padding.

    Paths are relative, and a cache lets the workers read the teachers' files: Ray Train changes their folder.
    """
    spec = everything(tmp_path_factory.mktemp("two"), 2) | {"feature_cache": {"enabled": True}}
    paths = [Path(teacher["pretrained_teacher_model_path"]) for teacher in two_vits]
    relative = [{**t, "pretrained_teacher_model_path": p.name} for t, p in zip(two_vits, paths, strict=True)]
    spec["distill"] = spec["distill"] | {"teacher": relative}
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(paths[0].parent)
        return distil(spec, *EVERY)


def terms(trail) -> dict[int, dict[str, float]]:
    """Every loss, and the learning rate, by step (from 1)."""
    events = [e for e in trail.events if isinstance(e, StepEvent)]
    return {e.step: {k: v for k, v in e.metrics.items() if k == "lr" or k.startswith("loss")} for e in events}


def assert_same(found: dict[int, dict[str, float]], expected: dict[int, dict[str, float]]) -> None:
    for step, losses in found.items():
        assert losses.keys() == expected[step].keys(), step
        for name, value in losses.items():
            assert value == pytest.approx(expected[step][name], rel=1e-4), (step, name)


def broken_off(trail, into: Path, steps: int) -> str:
    """An override that goes on from a copy of a run's folder as it stood after ``steps`` steps."""
    copy = into / "run" / "distill"
    shutil.copytree(trail.folder, copy, symlinks=True, ignore=shutil.ignore_patterns("ray"))
    folder = TaskFolder(copy.parent, "distill")
    for path in folder.checkpoints():
        if verified_state(path).global_step > steps:
            shutil.rmtree(path)
    (left,) = folder.checkpoints()
    folder.point_latest(left.name)
    return f"results_dir={copy.parent}"


def average(trail) -> dict[str, torch.Tensor]:
    return safetensors.torch.load_file(trail.result.checkpoint / "ema.safetensors")


def test_every_term_is_there_and_the_export_knows_every_teacher(quiet):
    found = terms(quiet)
    assert sorted(found) == list(range(1, STEPS + 1))
    names = {f"loss/t{i}/{kind}" for i in (0, 1) for kind in ("summary", "spatial")}
    for losses in found.values():
        assert names <= losses.keys() and {"loss/regularizer"} <= losses.keys()
        assert any("gram" in name for name in losses) and "loss/t0/binding_0" in losses
    source = read_source(quiet.result.exported.path, "export")
    heads = {name: set(kinds) for name, kinds in source.heads.items()}
    assert heads == dict.fromkeys(("t0", "t1"), {"summary", "spatial"})


def test_two_workers_print_the_losses_of_one_process(quiet, two_workers, ids_by_step):
    assert any("no GPU" in line and "2 CPU worker" in line for line in two_workers.lines)
    assert verified_state(two_workers.result.checkpoint).world_size == 2
    proof = prove_run(two_workers.folder)
    assert proof.holds and proof.consumed == 6 * STEPS and proof.replayed == 0
    assert ids_by_step(two_workers.folder) == ids_by_step(quiet.folder)
    assert_same(terms(two_workers), terms(quiet))
    mine, theirs = average(two_workers), average(quiet)
    assert mine.keys() == theirs.keys()
    for name, value in theirs.items():
        torch.testing.assert_close(mine[name], value, rtol=1e-3, atol=1e-4, msg=lambda m, n=name: f"{n}: {m}")


def test_one_process_goes_on_where_two_workers_broke_off(everything, quiet, two_workers, distil, tmp_path):
    again = distil(everything(tmp_path, 1), *EVERY, broken_off(two_workers, tmp_path, BROKEN_AT))
    assert again.result.resumed_from == BROKEN_AT and prove_run(again.folder).holds
    found = terms(again)
    assert sorted(found) == list(range(BROKEN_AT + 1, STEPS + 1))
    assert_same(found, terms(quiet))


@pytest.mark.proof
def test_two_workers_go_on_where_one_process_broke_off(everything, quiet, on_ray, distil, tmp_path):
    again = distil(everything(tmp_path, 2), *EVERY, broken_off(quiet, tmp_path, BROKEN_AT))
    assert again.result.resumed_from == BROKEN_AT and prove_run(again.folder).holds
    assert_same(terms(again), terms(quiet))
