"""What each ingredient of the recipe is worth to a student from random weights, at a budget where it can be seen.

``python -m benchmarks.teach.ingredients [--student vit] [--seeds 1 2 3] [--only NAME ...] [--folder results/teach]
[--answers DIR] [--minutes M]``. A ``radio_vit_tiny_patch16`` of six blocks is taught by tf_efficientnet_lite0 (summary
and map) and tf_efficientnet_lite2 (map) on two passes over the 12,000 crops of `benchmarks.teach.corpora`; ``--student
cnn`` is a ``mobilenetv3_small_100``, ``resnet`` a ``resnet10t``. A variant changes one thing of ``base``, or of the
variant that it names. Seeds are those of the weights and draws; the order and the views of the images are the same for
all, so that teachers compute each view once. Two runs at a time, a thread each.

``--answers`` keeps what each student answered to the judge's probes, some kilobytes a run, and a run whose answers are
there is not run again (``--answers docs/receipts/ingredients`` goes on from those of docs/measurements/recipe.md). A
killed run goes on, and ``--minutes`` starts no run after so many. The last line on stdout is one JSON object: for each
variant, over the seeds that it and the other side have, at least two, the differences on each figure of
`benchmarks/judges/knn.py`, paired over queries and seeds, with the p-value of its normal approximation and ``holm``:
that, corrected for all variants of the figure (Holm 1979).
"""

from __future__ import annotations

import argparse
import copy
import json
import os
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import NormalDist
from typing import Any

from omegaconf import OmegaConf

from benchmarks.teach.programs import TEACHERS, compared, distil, embedded, last_line, teacher
from radioplat.common import terminal
from radioplat.quickstart.weights import teacher_weights

FOLDER = Path("results/teach")
BASE = "base"
SIDE, BATCH, PASS, STEPS = 96, 32, 375, 750
FIGURES = ("pictures.knn", "pictures.linear", "fashion.knn", "fashion.linear", "composites.dense")
AT_ONCE = 2
STUDENTS = {
    "vit": {"type": "radio_vit_tiny_patch16", "kwargs": {"depth": 6}},
    "cnn": {"type": "mobilenetv3_small_100"},
    "resnet": {"type": "resnet10t"},
}
# Answers that are kept were given at these rates, which were the defaults then.
RATES = {"vit": 1e-3, "cnn": 3e-3, "resnet": 3e-3}


def _maps_by(loss: str) -> list[str]:
    return [f"distill.teacher[{i}].loss_type={loss}" for i in range(2)]


def _summary_by(loss: str) -> str:
    return f"distill.teacher[0].summary_loss_type={loss}"


_MSE = _maps_by("MSE")
_TWO_VIEWS = ["dataset.augmentation.views_per_image=2"]


def _batch(images: int, rate: float) -> list[str]:
    """The same images in steps of so many, at a rate."""
    source = "dataset.train_dataset.tar_data_sources[0]"
    steps = PASS * BATCH // images
    found = [f"dataset.batch_size={images}", f"{source}.steps_per_epoch={steps}"]
    found.append(f"train.max_steps={STEPS // PASS * steps}")
    return [*found, f"train.optim.lr={rate}"]


# name -> (the variant that it is compared with, its overrides)
VARIANTS: dict[str, tuple[str, list[str]]] = {
    BASE: (BASE, []),
    "mlp_heads": (BASE, ["distill.use_mlp=true"]),
    "without_warm_up": (BASE, ["train.optim.warmup_epochs=0"]),
    "similarity": (BASE, [*_maps_by("similarity"), _summary_by("similarity")]),
    "balanced": (BASE, [*_maps_by("BALANCED"), _summary_by("balanced")]),
    "cosine": ("balanced", [*_maps_by("CS"), _summary_by("cosine")]),
    "angle": (BASE, [_summary_by("angle")]),
    "mse": (BASE, _MSE),
    "standardize_mse": ("mse", [*_MSE, "distill.target_norm.type=standardize"]),
    "phi_s_mse": ("standardize_mse", [*_MSE, "distill.target_norm.type=phi_s"]),
    "standardize": (BASE, ["distill.target_norm.type=standardize"]),
    "phi_s": ("standardize", ["distill.target_norm.type=phi_s"]),
    "teacher_drop": (BASE, ["distill.teacher_drop_prob=0.25"]),
    "mesa": (BASE, ["distill.mesa.weight=1", "train.enable_ema=true", "train.ema_decay=0.99"]),
    "damp": (BASE, ["train.damp=0.1"]),
    "average": (BASE, ["train.enable_ema=true", "train.ema_decay=0.99"]),
    "partitions": (
        BASE,
        [
            "distill.partitions=[{share: 0.5, teachers: [lite0]}, {share: 0.5, teachers: [lite2]}]",
            f"dataset.batch_size={BATCH // 2}",
            f"train.global_batch_size={BATCH}",
        ],
    ),
    "without_cpe": (BASE, ["model.backbone.cpe=false", f"model.backbone.cpe_max_size={SIDE}"]),
    "without_registers": (BASE, ["model.backbone.cpe_num_registers=0"]),
    "rate_doubled": (BASE, ["train.optim.lr=2e-3"]),
    "rate_halved": (BASE, ["train.optim.lr=5e-4"]),
    "heads_faster": (BASE, ["train.optim.projector_lr=3e-3"]),
    "heads_slower": (BASE, ["train.optim.projector_lr=3e-4"]),
    "cosine_schedule": (BASE, ["train.optim.policy=cosine"]),
    "one_teacher": (BASE, []),
    "two_views": (BASE, _TWO_VIEWS),
    "two_views_a_step": ("two_views", [*_TWO_VIEWS, "dataset.train_dataset.views_per_step=2"]),
    "rate_1_5e_3": (BASE, ["train.optim.lr=1.5e-3"]),
    "rate_6e_3": (BASE, ["train.optim.lr=6e-3"]),
    "rate_1_2e_2": ("rate_6e_3", ["train.optim.lr=1.2e-2"]),
    "batch_8": (BASE, _batch(8, 1.5e-3)),
    "batch_8_same_rate": ("batch_8", _batch(8, 3e-3)),
    "batch_8_quarter_rate": ("batch_8", _batch(8, 3e-3 / 4)),
    "batch_128": (BASE, _batch(128, 6e-3)),
    "batch_128_same_rate": ("batch_128", _batch(128, 3e-3)),
    "batch_128_fourfold_rate": ("batch_128", _batch(128, 4 * 3e-3)),
}
OF_ONE_STUDENT = {
    "vit": ("without_cpe", "without_registers", "rate_doubled", "rate_halved", "heads_faster", "heads_slower"),
    "cnn": ("rate_1_5e_3", "rate_6e_3", "rate_1_2e_2", *(name for name in VARIANTS if name.startswith("batch_"))),
}
OF_ONE_STUDENT["resnet"] = OF_ONE_STUDENT["cnn"]


def main() -> None:
    """Run what is missing, and compare what is there."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[1, 2, 3])
    parser.add_argument("--student", choices=STUDENTS, default="vit")
    parser.add_argument("--only", nargs="+", choices=VARIANTS, metavar="NAME")
    parser.add_argument("--folder", type=Path, default=FOLDER)
    parser.add_argument("--answers", type=Path, help="default: in --folder")
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no run after so many")
    given = parser.parse_args()
    folder, deadline = given.folder.absolute(), time.monotonic() + 60 * given.minutes
    answers = (given.answers or folder / "ingredients" / "answers").absolute() / given.student
    unfit = {name for names in OF_ONE_STUDENT.values() for name in names} - set(OF_ONE_STUDENT[given.student])
    fitting = [name for name in VARIANTS if name not in unfit]
    if wrong := unfit.intersection(given.only or ()):
        parser.error(f"--only {' '.join(sorted(wrong))}: not for --student {given.student}")
    only = given.only or fitting
    os.environ["OMP_NUM_THREADS"] = "1"
    terminal.note("corpora")
    last_line("benchmarks.teach.corpora", "--folder", folder / "corpora")
    for kind in TEACHERS.values():
        teacher_weights(kind, folder / "weights")
    names = sorted(set(only) | {VARIANTS[name][0] for name in only}, key=list(VARIANTS).index)
    jobs = [(name, seed) for seed in given.seeds for name in names]

    def file(name: str, seed: int) -> Path:
        return answers / f"{name}_seed_{seed}.npz"

    def run(job: tuple[str, int]) -> None:
        if not file(*job).exists() and time.monotonic() < deadline:
            _run(folder, given.student, *job, file(*job))

    run(jobs[0])  # alone: it stores the teachers' features
    with ThreadPoolExecutor(AT_ONCE) as pool:
        list(pool.map(run, jobs))
    found: dict[str, dict[str, Any]] = {}
    for name in names:
        against = VARIANTS[name][0]
        seeds = [seed for seed in given.seeds if file(name, seed).exists() and file(against, seed).exists()]
        if name != BASE and len(seeds) >= min(2, len(given.seeds)):  # one seed does not show the noise between runs
            sides = [[file(each, seed) for seed in seeds] for each in (name, against)]
            found[name] = {"against": against, "seeds": seeds, **compared(*sides)["differences"]}
    correct(found)
    _show(found)
    print(json.dumps({"student": given.student, "images": STEPS * BATCH, "variants": found}))


def correct(found: dict[str, dict[str, Any]]) -> None:
    """Add ``p`` and ``holm`` to each difference: two-sided, the second corrected for all variants of the figure."""
    for figure in FIGURES:
        for variant in found.values():
            difference = variant[figure]
            z = abs(difference["difference"]) / max(difference["noise_floor"] / 1.96, 1e-12)
            difference["p"] = round(2 * (1 - NormalDist().cdf(z)), 6)
        largest = 0.0
        ordered = sorted(found.values(), key=lambda variant: variant[figure]["p"])
        for rank, variant in enumerate(ordered):
            largest = max(largest, min(1.0, variant[figure]["p"] * (len(ordered) - rank)))
            variant[figure]["holm"] = round(largest, 6)


def _show(found: dict[str, dict[str, Any]]) -> None:
    rows = []
    for name, variant in found.items():
        cells = [f"{variant[f]['difference']:+.3f} (p {variant[f]['holm']:.3f})" for f in FIGURES]
        rows.append([name, variant["against"], str(len(variant["seeds"])), *cells])
    terminal.show_table("differences, p corrected by Holm", ["", "against", "seeds", *FIGURES], rows)


def _run(folder: Path, student: str, name: str, seed: int, answers: Path) -> None:
    """Train one variant, and keep what it answers to the judge."""
    terminal.note(f"{name}, seed {seed}")
    home = folder / "ingredients" / student / name / f"seed_{seed}"
    onnx = distil(home, _spec(folder, student, name, seed))
    embeddings = embedded(home / "embeddings.npz", folder / "corpora", onnx)
    last_line("benchmarks.judges.knn", embeddings, "--answers", answers)
    embeddings.unlink()


def _spec(folder: Path, student: str, name: str, seed: int) -> dict[str, Any]:
    source = {"root_dir": str(folder / "corpora" / "train"), "samples_per_file": 500, "steps_per_epoch": PASS}
    teachers = [
        teacher(each, teacher_weights(kind, folder / "weights"), "combo" if each == "lite0" else "spatial")
        for each, kind in TEACHERS.items()
    ]
    base = {
        "model": {"backbone": STUDENTS[student]},
        "dataset": {
            "img_size": SIDE,
            "batch_size": BATCH,
            "workers": 1,
            "augmentation": {"views_per_image": 1},
            "train_dataset": {"tar_data_sources": [source], "seed": 1},
            "index_dir": str(folder / "index"),
        },
        "train": {"seed": seed, "max_steps": STEPS, "num_epochs": STEPS // PASS, "optim": {"lr": RATES[student]}},
        "distill": {"teacher": teachers[: 1 if name == "one_teacher" else None]},
        "feature_cache": {"dir": str(folder / "ingredients" / "features")},
        "cluster": {"mode": "local"},
    }
    spec = OmegaConf.create(copy.deepcopy(base))
    for override in VARIANTS[name][1]:
        path, _, value = override.partition("=")
        OmegaConf.update(spec, path, OmegaConf.create(f"value: {value}").value, force_add=True)
    return OmegaConf.to_container(spec)  # type: ignore[return-value]


if __name__ == "__main__":
    sys.exit(main())
