"""Two tiny corpora of real crops, two teachers (one with real ImageNet weights), and a spec that trains on them."""

from __future__ import annotations

import copy
import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors.torch
import skimage
import torch
import yaml
from PIL import Image

import radioplat
from benchmarks.ledger_rows import effective, read_consumed
from radioplat.launch.driver import RunResult
from radioplat.models.backbones.timm_backbone import TimmBackbone
from radioplat.quickstart.weights import teacher_weights
from radioplat.tracking.follow import StepEvent

PHOTOGRAPHS = ("astronaut.png", "coffee.png", "chelsea.png", "rocket.jpg")
BUNDLED = Path(skimage.__file__).parent / "data"
SIZE = 64


def crops(names: Iterable[str], count: int, side: int, seed: int) -> list[tuple[str, np.ndarray]]:
    """``count`` squares of ``side`` pixels cut from bundled photographs: (photograph, uint8 ``[side, side, 3]``)."""
    rng, found = np.random.default_rng(seed), []
    pictures = {}
    for name in names:
        with Image.open(BUNDLED / name) as image:
            pictures[name] = np.asarray(image.convert("RGB"))
    for i in range(count):
        name = list(pictures)[i % len(pictures)]
        picture = pictures[name]
        y, x = (int(rng.integers(0, limit - side)) for limit in picture.shape[:2])
        found.append((name.partition(".")[0], picture[y : y + side, x : x + side]))
    return found


def encode(pixels: np.ndarray, kind: str) -> bytes:
    """An image file: ``JPEG`` or ``PNG``."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, kind, **({"quality": 95} if kind == "JPEG" else {}))
    return buffer.getvalue()


def write_shard(path: Path, members: Iterable[tuple[str, bytes]]) -> Path:
    """A tar of (name, bytes)."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return path


def corpus(folder: Path, kind: str, count: int, seed: int, side: int = 80, shards: int = 2) -> Path:
    """A folder of WebDataset shards with JSON sidecars: label, sha256, caption."""
    extension = {"JPEG": "jpg", "PNG": "png"}[kind]
    images = crops(PHOTOGRAPHS, count, side, seed)
    for s in range(shards):
        members = []
        for i, (name, pixels) in list(enumerate(images))[s::shards]:
            data = encode(pixels, kind)
            sidecar = {"label": name, "sha256": hashlib.sha256(data).hexdigest(), "caption": f"a piece of {name}"}
            members += [(f"{i:04d}.{extension}", data), (f"{i:04d}.json", json.dumps(sidecar).encode())]
        write_shard(folder / f"shard-{s:03d}.tar", members)
    return folder


@pytest.fixture(scope="session", name="crops")
def crops_fixture() -> Callable[[int, int, int], list[tuple[str, np.ndarray]]]:
    """crops(count, side, seed): see :func:`crops`."""
    return lambda count, side, seed: crops(PHOTOGRAPHS, count, side, seed)


@pytest.fixture(scope="session", name="encode")
def encode_fixture() -> Callable[[np.ndarray, str], bytes]:
    """See :func:`encode`."""
    return encode


@pytest.fixture(scope="session", name="write_shard")
def write_shard_fixture() -> Callable[..., Path]:
    """See :func:`write_shard`."""
    return write_shard


@pytest.fixture(scope="session")
def corpora(tmp_path_factory) -> Path:
    """``a`` (JPEG), ``b`` (PNG), ``held_out``, and ``folders`` (one folder a class); tests only read them."""
    root = tmp_path_factory.mktemp("corpora")
    corpus(root / "a", "JPEG", 24, seed=1)
    corpus(root / "b", "PNG", 16, seed=2)
    corpus(root / "held_out", "PNG", 12, seed=3, shards=1)
    for i, (name, pixels) in enumerate(crops(PHOTOGRAPHS[:3], 18, 80, seed=4)):
        path = root / "folders" / name / f"{i:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(pixels, "JPEG"))
    return root


@pytest.fixture(scope="session")
def weights(tmp_path_factory) -> dict[str, Path]:
    """``lite0``: EfficientNet-Lite0 as ImageNet trained it; ``vit``: timm's test_vit, seeded."""
    folder = tmp_path_factory.mktemp("weights")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        vit = TimmBackbone("test_vit", num_classes=0, img_size=SIZE).model.state_dict()
    safetensors.torch.save_file(vit, folder / "vit.safetensors")
    return {"lite0": teacher_weights("tf_efficientnet_lite0", folder), "vit": folder / "vit.safetensors"}


SpecMaker = Callable[..., dict[str, Any]]


@pytest.fixture(scope="session")
def make_spec(corpora, weights) -> SpecMaker:
    """make_spec(results_dir, {section: ...}) -> a spec: two corpora 2:1, two teachers, 2 epochs of 4 steps of 6."""
    kwargs = {"embed_dim": 48, "depth": 2, "num_heads": 3}
    # Positions for 2048 pixels, which this name has, would be most of so small a student.
    student = {"type": "c_radio_v3_vit_base_patch16_reg4_dinov2", "kwargs": kwargs, "cpe_max_size": SIZE}
    base = {
        "model": {"backbone": student},
        "dataset": {
            "img_size": SIZE,
            "batch_size": 2,
            "workers": 1,
            "augmentation": {"views_per_image": 0},  # else the second epoch would ask no teacher
            "train_dataset": {
                "tar_data_sources": [
                    {"root_dir": str(corpora / "a"), "scale_factor": 2.0, "steps_per_epoch": 4},
                    {"root_dir": str(corpora / "b"), "steps_per_epoch": 4},
                ],
            },
            "val_dataset": {"tar_data_sources": [{"root_dir": str(corpora / "held_out")}]},
        },
        "train": {
            "global_batch_size": 6,
            "num_epochs": 2,
            "precision": "fp32",
            "zero_stage": 0,
            "optim": {"lr": 1e-3, "policy": "cosine"},
        },
        "distill": {
            "loss_type": "BALANCED",
            "loss_lambda": 1.0,
            "mlp_hidden_size": 32,
            "teacher": [
                {
                    "name": "lite0",
                    "model": {"backbone": {"type": "tf_efficientnet_lite0"}},
                    "mode": "combo",
                    "pretrained_teacher_model_path": str(weights["lite0"]),
                    "summary_loss_type": "cosine",
                    "norm_mean": [0.5, 0.5, 0.5],
                    "norm_std": [0.5, 0.5, 0.5],
                },
                {
                    "name": "vit",
                    "model": {"backbone": {"type": "test_vit", "kwargs": {"img_size": SIZE}}},
                    "pretrained_teacher_model_path": str(weights["vit"]),
                    "mode": "spatial",
                },
            ],
        },
        "teachers": {"lite0": {"num_cpus": 0.5}, "vit": {"num_cpus": 0.5}},
        # Maps so small are drawn from a hundred windows an image.
        "evaluate": {"pictures": 1, "batch_size": 8},
        "cluster": {"mode": "local", "cpus_per_worker": 0.5, "cpus_per_decode": 0.5},
    }

    def make(results_dir: Path | str, changes: dict[str, Any] | None = None) -> dict[str, Any]:
        return _merged(copy.deepcopy(base) | {"results_dir": str(results_dir)}, changes or {})

    return make


def _merged(tree: dict, changes: dict) -> dict:
    for key, value in changes.items():
        tree[key] = _merged(tree[key], value) if isinstance(value, dict) and isinstance(tree.get(key), dict) else value
    return tree


class Trail:
    """What a run did, read from what it left and from its callbacks."""

    def __init__(self, result: RunResult, events: list, lines: list[str]) -> None:
        self.result, self.events, self.lines = result, events, lines
        self.folder = result.folder

    @property
    def losses(self) -> dict[int, float]:
        """Total loss by step (from 1) of this start."""
        return {e.step: e.metrics["loss"] for e in self.events if isinstance(e, StepEvent)}


@pytest.fixture(scope="session")
def distil() -> Callable[..., Trail]:
    """distil(spec, *overrides) -> :class:`Trail`."""

    def run(spec: dict | str | Path, *overrides: str) -> Trail:
        events: list = []
        lines: list[str] = []
        result = radioplat.distill(spec, overrides, callbacks=[events.append], say=lines.append)
        return Trail(result, events, lines)

    return run


@pytest.fixture(scope="session")
def ids_by_step() -> Callable[..., dict[int, list[int]]]:
    """ids_by_step(folder) -> the sample ids that led to the final checkpoint, in the order of their positions."""

    def read(folder: Path, steps: int | None = None) -> dict[int, list[int]]:
        rows = effective(read_consumed(folder / "ledger"), None if steps is None else steps - 1)
        found: dict[int, list[tuple[int, int]]] = {}
        for step, position, id_ in zip(*(rows[c].to_pylist() for c in ("step", "position", "id")), strict=True):
            found.setdefault(step, []).append((position, id_))
        return {step: [id_ for _, id_ in sorted(pairs)] for step, pairs in sorted(found.items())}

    return read


@pytest.fixture(scope="session")
def quiet_run(make_spec, distil, tmp_path_factory) -> Trail:
    """Eight steps in one go, a checkpoint every second step; tests only read it."""
    spec = make_spec(tmp_path_factory.mktemp("quiet"))
    file = Path(spec["results_dir"]) / "spec.yaml"
    file.write_text(yaml.safe_dump(spec))
    trail = distil(file, "train.checkpoint_interval=2", "train.checkpoint_interval_unit=step")
    trail.file = file
    return trail


@pytest.fixture(scope="session")
def student_tensors() -> Callable[[Path], dict[str, torch.Tensor]]:
    """student_tensors(checkpoint) -> weights and buffers of student and heads."""

    def read(path: Path) -> dict[str, torch.Tensor]:
        tensors = safetensors.torch.load_file(path / "student.safetensors")
        return tensors | safetensors.torch.load_file(path / "heads.safetensors")

    return read


@pytest.fixture(scope="session")
def ray_environment(tmp_path_factory) -> dict[str, str]:
    """What makes Ray quick enough for a test, for processes and clusters that the test starts."""
    return os.environ | {
        # Ray's workers import wandb, which makes folders for temporary files, and are killed before they remove them.
        "TMPDIR": str(tmp_path_factory.mktemp("tmp")),
        "RAY_TMPDIR": "/tmp",  # not there: the paths of Ray's sockets would be too long
        "RAY_TRAIN_HEALTH_CHECK_INTERVAL_S": "0.2",
        "RAY_TRAIN_ENABLE_PREEMPTION_WATCHER": "0",
        "OMP_NUM_THREADS": "1",
    }
