"""Does a student learn more from its teachers, or from a proxy that has learnt from them?

``python -m benchmarks.family_proxy [--epochs 5] [--proxy-epochs 2] [--folder DIR]``. For three seeds, a small CNN
(lcnet_050, random weights) learns from two teachers (EfficientNet-Lite0 and Lite2), and another from a proxy: Lite0's
own weights, taught by both first. All are nodes of one ``radioplat pipeline``; both students see the same crops in as
many steps. The command is killed with all its processes while the first student learns, and given again. What can be
read of each teacher from their features on crops of other photographs is judged by `benchmarks/judges/readout.py`.

The last line on stdout is one JSON object: ``proxy_vs_direct_fidelity`` (mean over both teachers of the difference,
positive if the proxy teaches better), by teacher ``figure`` (by proxy), ``against`` (direct) and ``difference``, with
95 % intervals that are paired over images and seeds. `benchmarks.pipeline` has the other keys.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import statistics
import time
from concurrent.futures import ProcessPoolExecutor, ThreadPoolExecutor
from itertools import repeat
from pathlib import Path
from typing import Any

import numpy as np
import skimage
import sklearn.datasets
import yaml
from PIL import Image

import radioplat
from benchmarks import pipeline
from benchmarks.elastic_inputs import make_inputs
from benchmarks.folder import kept_or_scratch
from benchmarks.teach.programs import last_line
from radioplat.quickstart.weights import MEAN, STD, teacher_weights

SEEDS = (1, 2, 3)
TEACHERS = {"lite0": "tf_efficientnet_lite0", "lite2": "tf_efficientnet_lite2"}
SIDE, BATCH = 96, 16
EPOCH = 24  # steps
EPOCHS, PROXY_EPOCHS = 5, 2
# Other photographs than those of the training images: crops of the left of each are the bank, of the right the queries.
HELD_OUT = (
    "hubble_deep_field.jpg",
    "ihc.png",
    "motorcycle_left.png",
    "retina.jpg",
    "color.png",
    "china.jpg",
    "flower.jpg",
)
CROPS = {"bank": (300, 0.0, 0.6), "queries": (150, 0.6, 1.0)}  # number, and part of the width


def main() -> None:
    """Train, judge and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--folder", type=Path, help="for what the programs leave; default: a temporary one")
    parser.add_argument("--epochs", type=int, default=EPOCHS, help=f"of both students; {EPOCH} steps each")
    parser.add_argument("--proxy-epochs", type=int, default=PROXY_EPOCHS)
    given = parser.parse_args()
    with kept_or_scratch(given.folder, "family_proxy") as home:
        print(json.dumps(measured(home.resolve(), given.epochs, given.proxy_epochs)))


def measured(home: Path, epochs: int, proxy_epochs: int) -> dict[str, Any]:
    """Return all figures."""
    begin = time.monotonic()
    chain = pipeline.run_with_kills(written(home, epochs, proxy_epochs), home / "results", [(["direct_1"], True)])
    crops = held_out(home / "held_out.npz")
    nodes = [f"{kind}_{seed}" for kind in ("by_proxy", "direct") for seed in SEEDS]
    with ProcessPoolExecutor(2, multiprocessing.get_context("spawn")) as processes:  # tracing takes one thread
        files = list(processes.map(exported, repeat(home), nodes))

    def judge(architecture: str) -> dict[str, Any]:
        options = ["--timm", architecture, "--weights", teacher_weights(architecture, home / "weights")]
        options += ["--mean", *MEAN, "--std", *STD, "--images", crops]
        by_proxy, direct = files[: len(SEEDS)], files[len(SEEDS) :]
        return last_line("benchmarks.judges.readout", *by_proxy, "--against", *direct, *options)

    with ThreadPoolExecutor(len(TEACHERS)) as threads:  # a judge takes one thread, too
        judged = dict(zip(TEACHERS, threads.map(judge, TEACHERS.values()), strict=True))
    return {
        "proxy_vs_direct_fidelity": round(statistics.fmean(each["difference"]["value"] for each in judged.values()), 5),
        **judged,
        "dag_nodes_rerun_after_kill": chain["dag_nodes_rerun_after_kill"],
        "ran": chain["ran"],
        "seeds": len(SEEDS),
        "steps": epochs * EPOCH,
        "proxy_steps": proxy_epochs * EPOCH,
        "seconds": round(time.monotonic() - begin),
    }


def written(home: Path, epochs: int, proxy_epochs: int) -> Path:
    """Write images, weights, spec and pipeline; return the path of the pipeline."""
    make_inputs(home / "inputs", images=480, shards=4)
    weights = {name: teacher_weights(architecture, home / "weights") for name, architecture in TEACHERS.items()}
    teachers = [
        {
            "name": name,
            "model": {"backbone": {"type": TEACHERS[name]}},
            "pretrained_teacher_model_path": str(path),
            "mode": "combo",
            "input_size": 224,
            "norm_mean": list(MEAN),
            "norm_std": list(STD),
        }
        for name, path in weights.items()
    ]
    spec = {
        "model": {"backbone": {"type": "lcnet_050"}},
        "dataset": {
            "img_size": SIDE,
            "batch_size": BATCH,
            "workers": 1,
            "index_dir": str(home / "index"),
            "augmentation": {"views_per_image": 1},
            "train_dataset": {
                "tar_data_sources": [{"root_dir": str(home / "inputs" / "shards"), "steps_per_epoch": EPOCH}]
            },
        },
        "train": {
            "global_batch_size": BATCH,
            "num_epochs": epochs,
            "precision": "fp32",
            "optim": {"lr": 2e-3, "policy": "cosine"},
        },
        "distill": {"teacher": teachers},
        "feature_cache": {"dir": str(home / "features")},
        "cluster": {"mode": "local"},
    }
    nodes: dict[str, Any] = {}
    for seed in SEEDS:
        start = f"train.pretrained_model_path={weights['lite0']}"
        fine = [f"train.seed={seed}", f"train.num_epochs={proxy_epochs}", "train.optim.lr=5.0e-4"]
        nodes[f"proxy_{seed}"] = {"changes": [f"model.backbone.type={TEACHERS['lite0']}", start, *fine]}
        path = f"'${{nodes.proxy_{seed}.student}}'"
        taught = f"distill.teacher=[{{name: proxy, mode: combo, pretrained_teacher_model_path: {path}}}]"
        nodes[f"direct_{seed}"] = {"changes": [f"train.seed={seed}"]}
        nodes[f"by_proxy_{seed}"] = {"changes": [taught, f"train.seed={seed}"]}
    (home / "spec.yaml").write_text(yaml.safe_dump(spec))
    tree = {"results_dir": str(home / "results"), "spec": "spec.yaml", "nodes": nodes}
    (home / "dag.yaml").write_text(yaml.safe_dump(tree, sort_keys=False))
    return home / "dag.yaml"


def held_out(path: Path) -> Path:
    """Write crops of other photographs than the training's; return the file."""
    folders = [Path(skimage.__file__).parent / "data", Path(sklearn.datasets.__file__).parent / "images"]
    rng, arrays, pictures = np.random.default_rng(1), {}, []
    for name in HELD_OUT:
        with Image.open(next(each / name for each in folders if (each / name).exists())) as image:
            pictures.append(np.asarray(image.convert("RGB")))
    for part, (count, begin, end) in CROPS.items():
        crops = []
        for number in range(count):
            picture = pictures[number % len(pictures)]
            picture = picture[:, int(begin * picture.shape[1]) : int(end * picture.shape[1])]
            side = min(160, *picture.shape[:2])
            y, x = (int(rng.integers(0, limit - side + 1)) for limit in picture.shape[:2])
            crop = Image.fromarray(picture[y : y + side, x : x + side]).resize((SIDE, SIDE), Image.BICUBIC)
            crops.append(np.asarray(crop))
        arrays[f"{part}.images"] = np.stack(crops)
    np.savez(path, **arrays)
    return path


def exported(home: Path, node: str) -> Path:
    """Export the student of a node; return the ONNX file."""
    folder = home / "results" / node / "distill" / "model_latest"
    section = {"checkpoint": str(folder), "input_width": SIDE, "input_height": SIDE}
    report = radioplat.export({"export": section, "results_dir": str(home / "exported" / node)})
    return report.path


if __name__ == "__main__":
    main()
