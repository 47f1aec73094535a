"""A student with a sequence of tokens: what do its first 1, 4, 16 tokens hold?"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from benchmarks.teach.programs import FIGURE, TEACHERS, compared, distil, embedded, exported, last_line, seconds_of
from benchmarks.teach.scratch import BATCH, PASS, TEACHER, spec_of
from radioplat.quickstart.weights import MEAN, STD, teacher_weights

STUDENT = {"type": "radio1d_vit_tiny_patch8", "kwargs": {"depth": 4, "decoder_depth": 4}}  # 36 tokens at 96 pixels
TOKENS = (1, 4, 16, 36)
STEPS = PASS


def run(folder: Path, seeds: list[int]) -> dict[str, Any]:
    """Train for each seed; export with so many tokens, and judge each file."""
    corpora, weights = folder / "corpora", teacher_weights(TEACHERS[TEACHER], folder / "weights")
    homes = [folder / "sequence" / f"seed_{seed}" for seed in seeds]
    specs = [spec_of(corpora, weights, seed, STEPS) | {"model": {"backbone": STUDENT}} for seed in seeds]
    for home, spec in zip(homes, specs, strict=True):
        distil(home, spec)
    card = ["--head", TEACHER, "--kind", "summary", "--mean", *MEAN, "--std", *STD]
    card += ["--timm", TEACHERS[TEACHER], "--weights", weights, "--corpora", corpora]
    figures = {}
    for count in TOKENS:
        files = [_file(home, spec, count) for home, spec in zip(homes, specs, strict=True)]
        knn = compared([embedded(file.with_name("embeddings.npz"), corpora, file) for file in files], [])
        fidelity = last_line("benchmarks.judges.fidelity", *files, *card)
        figures[count] = {FIGURE: knn["figures"][FIGURE], "fidelity": fidelity}
    return {"sequence": {"images": STEPS * BATCH, "seconds": [seconds_of(home) for home in homes], "tokens": figures}}


def _file(home: Path, spec: dict[str, Any], count: int) -> Path:
    checkpoint = home / "distill" / "model_latest"
    export = {"checkpoint": str(checkpoint), "num_tokens": count}
    return exported(home / f"{count}_tokens", {**spec, "export": export}, [TEACHER])
