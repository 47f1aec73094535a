"""The sides that ``benchmarks.teachers`` compares: ``python -m benchmarks.teachers_sides SIDE WORK.json``.

Each runs in a process of its own and prints one JSON object. Start-up is left out: the clock starts after
:data:`WARM_UP` steps, and stops while the teachers still have work ahead of the student, so that nothing that was
computed before the clock started is counted.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path

WARM_UP, AHEAD, PREFETCH = 2, 4, 2  # steps before the clock starts and after it stops; micro-batches asked ahead
SIZE, WIDTH = 224, 384  # of the images; of ViT-S
STUDENTS = {"vit_tiny_patch16_224": 192, "vit_small_patch16_224": 384}


@dataclass
class Work:
    """What a side is given.

    Attributes:
        student, depth: timm's name and its blocks.
        weights: of the ViT-S teachers.
        shards, images: the same photographs as tar shards and as files.
        steps: to be timed.
        overrides: of our spec, e.g. placement and threads.
        scratch: an empty folder.
        precision: of student and teachers; on a GPU fp32 is multiplied as TF32, on all sides.
        device: of all sides, ``cuda`` or ``cpu``.
    """

    student: str
    weights: list[str]
    shards: str
    images: str
    scratch: str
    batch: int = 8
    steps: int = 6
    depth: int = 12
    precision: str = "fp32"
    device: str = "cpu"
    overrides: list[str] = field(default_factory=list)
    cache: str = ""

    @property
    def total_steps(self) -> int:
        """Those that are not timed included."""
        return WARM_UP + self.steps + AHEAD


def bare(work: Work) -> dict:
    """What one writes by hand: both teachers, then the student, in one loop on images in memory, on the same device.

    On a CPU both thread counts are tried on this machine, and the faster one counts. On a GPU images are in pinned
    memory, teachers have weights in the number format that they compute in, and AdamW is fused, as ours is.
    """
    import torch

    if work.device == "cuda":
        torch.set_float32_matmul_precision("high")
        torch.backends.cudnn.allow_tf32 = True
        return {"images_s": _bare(work, work.steps), "threads": torch.get_num_threads()}
    found = {}
    for threads in sorted({1, len(os.sched_getaffinity(0))}):
        torch.set_num_threads(threads)
        found[threads] = _bare(work, 1 if threads == 1 else work.steps)
    threads = max(found, key=found.get)
    if threads == 1:
        torch.set_num_threads(1)
        found[1] = _bare(work, work.steps)
    return {"images_s": found[threads], "threads": threads}


def _bare(work: Work, steps: int) -> float:
    import timm
    import torch
    import torch.nn.functional as F
    from safetensors.torch import load_file
    from torch import nn

    torch.manual_seed(0)
    gpu, low = work.device == "cuda", work.precision == "bf16"
    student = timm.create_model(work.student, num_classes=0, depth=work.depth).to(work.device)
    width = STUDENTS[work.student]
    heads = nn.ModuleList(nn.ModuleList([nn.Linear(width, WIDTH), nn.Linear(width, WIDTH)]) for _ in work.weights)
    heads.to(work.device)
    teachers = []
    for path in work.weights:
        teacher = timm.create_model("vit_small_patch16_224", num_classes=0).eval().requires_grad_(False)
        teacher.load_state_dict(load_file(path))
        teachers.append(teacher.to(work.device, torch.bfloat16 if gpu and low else torch.float32))
    parameters = [*student.parameters(), *heads.parameters()]
    optimizer = torch.optim.AdamW(parameters, lr=1e-4, fused=gpu or None)
    images = [torch.randint(0, 256, (work.batch, 3, SIZE, SIZE), dtype=torch.uint8) for _ in range(4)]
    images = [image.pin_memory() for image in images] if gpu else images
    mean, std = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])
    mean, std = (t.view(1, 3, 1, 1).to(work.device) * 255 for t in (mean, std))
    narrow = torch.autocast(work.device, torch.bfloat16, enabled=low)
    begin, warm_up = 0.0, WARM_UP if gpu else 1
    for step in range(warm_up + steps):
        if step == warm_up:
            _wait(work)
            begin = time.perf_counter()
        x = (images[step % len(images)].to(work.device, non_blocking=True) - mean) / std
        with narrow:
            with torch.no_grad():
                targets = [teacher.forward_features(x).float() for teacher in teachers]
            tokens = student.forward_features(x)
            loss = 0.0
            for (summary, spatial), target in zip(heads, targets, strict=True):
                loss = loss + 1 - F.cosine_similarity(summary(tokens[:, 0]).float(), target[:, 0]).mean()
                loss = loss + F.mse_loss(spatial(tokens[:, 1:]).float(), target[:, 1:])
        optimizer.zero_grad(set_to_none=True)
        loss.backward()
        nn.utils.clip_grad_norm_(parameters, 2.0)
        optimizer.step()
    _wait(work)
    return work.batch * steps / (time.perf_counter() - begin)


def _wait(work: Work) -> None:
    """Wait until a GPU has done what it was asked for: a launch is not a step."""
    if work.device == "cuda":
        import torch

        torch.cuda.synchronize()


def ours(work: Work) -> dict:
    """``radioplat.distill`` on the tar shards: decoding, crops, ledger and all; on a GPU if this machine has one."""
    import torch

    import radioplat
    from radioplat.tracking.follow import StepEvent

    assert (work.device == "cuda") == torch.cuda.is_available(), "a local run takes the GPU that there is"
    events: list[StepEvent] = []
    spec = {
        "results_dir": f"{work.scratch}/results",
        "model": {"backbone": {"type": work.student, "kwargs": {"depth": work.depth}}},
        "dataset": {
            "img_size": SIZE,
            "batch_size": work.batch,
            "prefetch_batches": PREFETCH,
            "augmentation": {"views_per_image": 0},  # teachers compute each image in each pass, as on the other sides
            "train_dataset": {"tar_data_sources": [{"root_dir": work.shards}]},
        },
        "train": {"precision": work.precision, "max_steps": work.total_steps, "optim": {"lr": 1e-4}},
        "distill": {
            "use_mlp": False,
            "teacher": [
                {
                    "name": f"t{i}",
                    "model": {"backbone": {"type": "vit_small_patch16_224"}},
                    "pretrained_teacher_model_path": path,
                    "mode": "combo",
                    "loss_type": "MSE",
                    "summary_loss_type": "cosine",
                }
                for i, path in enumerate(work.weights)
            ],
        },
        "teachers": {f"t{i}": {"precision": work.precision} for i in range(len(work.weights))},
    }
    if work.cache:
        spec["feature_cache"] = {"dir": work.cache}
    radioplat.distill(spec, work.overrides, callbacks=[events.append])
    steps = [e.metrics for e in events if isinstance(e, StepEvent)]
    assert len(steps) == work.total_steps, len(steps)
    timed = steps[WARM_UP : WARM_UP + work.steps]
    seconds = sum(s["seconds/step"] for s in timed)
    return {
        "images_s": work.batch * work.steps / seconds,
        "waiting": sum(s["seconds/wait"] for s in timed) / seconds,
        "teachers_s": sum(v for s in timed for k, v in s.items() if k.startswith("seconds/teacher/")) / len(timed),
        "step_s": seconds / work.steps,
    }


class _Clock:
    """A hook that notes when it is called; of a class, so that a checkpoint of the model can be pickled.

    Args:
        work: on a GPU the hook waits for it where the clock starts and stops, and nowhere between.
    """

    def __init__(self, work: Work) -> None:
        self.times: list[float] = []
        self._work = work

    def __call__(self, module, arguments) -> None:
        if len(self.times) in (WARM_UP, WARM_UP + self._work.steps):
            _wait(self._work)
        self.times.append(time.perf_counter())


def lightly(work: Work) -> dict:
    """LightlyTrain's ``distillationv3`` on the photographs as files; runs in an environment of its own."""
    import lightly_train
    import timm
    import torch

    if work.device == "cuda":  # fp32 as TF32, as on the other sides
        torch.set_float32_matmul_precision("high")
    clock = _Clock(work)
    student = timm.create_model(work.student, num_classes=0, depth=work.depth)
    student.patch_embed.register_forward_pre_hook(clock)
    count = len(os.listdir(work.images)) // work.batch
    lightly_train.pretrain(
        out=f"{work.scratch}/out",
        data=work.images,
        model=student,
        method="distillationv3",
        method_args={"teacher": timm.create_model("vit_small_patch16_224", num_classes=0)},
        epochs=-(-work.total_steps // count),
        batch_size=work.batch,
        num_workers=1,
        accelerator="gpu" if work.device == "cuda" else "cpu",
        devices=1,
        precision="32-true" if work.precision == "fp32" else "bf16-mixed",
        transform_args={"image_size": (SIZE, SIZE)},
    )
    timed = clock.times[WARM_UP : WARM_UP + work.steps + 1]
    return {"images_s": work.batch * (len(timed) - 1) / (timed[-1] - timed[0])}


def transfer(work: Work) -> dict:
    """Features of a large map from an actor to here, by the pack and unpack of a run, and a memcpy of as many bytes."""
    import numpy as np
    import ray
    import torch

    from radioplat.models.features import Features
    from radioplat.teachers.serving.transport import pack, to_host, unpack

    class Teacher:
        def __init__(self) -> None:
            self.features = Features(torch.randn(64, 1024).bfloat16(), torch.randn(64, 16, 16, 1024).bfloat16(), {})

        def forward(self):
            return to_host(pack(self.features, 0.0))

    ray.init(address="local", num_cpus=2, include_dashboard=False, log_to_driver=False, logging_level="error")
    try:
        teacher = ray.remote(Teacher).remote()
        times, copies = [], []
        for _ in range(20):
            begin = time.perf_counter()
            packed = ray.get(teacher.forward.remote())
            features = unpack(packed)
            float(features.spatial[0, 0, 0, 0])
            times.append(time.perf_counter() - begin)
            source = np.array(packed.spatial)
            target = np.empty_like(source)
            target[:] = 0  # pages are there, as they are in the object store after a few answers
            begin = time.perf_counter()
            np.copyto(target, source)
            copies.append((time.perf_counter() - begin) / source.nbytes * packed.nbytes)
        size = packed.nbytes / 1e9
    finally:
        ray.shutdown()
    return {"gb_s": size / sorted(times)[10], "memcpy_gb_s": size / sorted(copies)[10]}


SIDES: dict[str, Callable[[Work], dict]] = {
    "bare": bare,
    "ours": ours,
    "lightly": lightly,
    "transfer": transfer,
}


def save(work: Work, path: Path) -> Path:
    """Write ``work`` where :func:`main` reads it."""
    path.write_text(json.dumps(asdict(work)))
    return path


def main() -> None:
    """Run one side."""
    side, path = sys.argv[1:]
    print(json.dumps(SIDES[side](Work(**json.loads(Path(path).read_text())))), flush=True)


if __name__ == "__main__":
    main()
