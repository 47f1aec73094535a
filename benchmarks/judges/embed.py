"""Embed the held-out corpora with a student or a teacher, for the judge. Imports nothing of radioplat.

``python -m benchmarks.judges.embed STUDENT.onnx --out E.npz [--corpora results/teach/corpora]`` runs an exported
student: images float32 ``[B, 3, H, W]`` in [0, 1] in, out ``summary`` ``[B, D]`` and ``spatial`` ``[B, h, w, D]``.
Images are resized (bicubic) for a graph of one size, and the last batch is filled up for one of a fixed batch. Without
a summary, the mean of the map stands for it. Export with dynamic resolution: the dense probe has images of 192 pixels.

``--timm ARCHITECTURE [--weights F.safetensors] [--mean 0.5 --std 0.5] [--seed 0]`` runs a timm model instead: pooled
features before the classifier, and the last map. Without weights it is untrained, from the seed; mean and std, unless
given, are those of the architecture's card.

The corpora are those of ``benchmarks.teach.corpora``; ``--only scenes fashion`` takes some. The crops of ``scenes`` are
embedded once and judged twice: by scene, and as task ``pictures`` by picture. The last line on stdout is one JSON
object; `benchmarks/judges/embeddings.py` says what the file holds.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from PIL import Image

from benchmarks.judges.embeddings import IGNORED, SPLITS, UnfitFile

CORPORA = Path("results/teach/corpora")
TASKS = ("scenes", "fashion", "composites")
BATCH = 64
LEAST_SHARE = 0.5  # of a position's pixels with one label; positions without such a label do not count


class Model(Protocol):
    """What is embedded with."""

    name: str

    def __call__(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """Summary float32 ``[B, D]`` and map ``[B, h, w, D]`` (or None) of uint8 ``[B, H, W, 3]``."""
        ...


class OnnxStudent:
    """An exported student on onnxruntime's CPU provider.

    Args:
        prefix: of the outputs' names: ``NAME.`` for the head of teacher ``NAME``.

    Raises:
        UnfitFile: the file is no ONNX graph with these inputs and outputs.
    """

    def __init__(self, path: Path, threads: int = 1, prefix: str = "") -> None:
        import onnxruntime

        self.name = str(path)
        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 4  # what it would log is raised, too
        if not path.is_file():
            raise UnfitFile(f"{path}: there is no such file")
        try:
            self._session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        except Exception as error:  # onnxruntime raises errors of many types
            raise UnfitFile(f"{path}: onnxruntime cannot load it: {_in_short(error)}") from None
        outputs = {output.name for output in self._session.get_outputs()}
        inputs = self._session.get_inputs()
        self._outputs = [prefix + kind for kind in ("summary", "spatial") if prefix + kind in outputs]
        self._prefix = prefix
        if len(inputs) != 1 or len(inputs[0].shape) != 4 or not self._outputs:
            raise UnfitFile(
                f"{path}: expected one input [B, 3, H, W] and outputs {prefix}summary, {prefix}spatial; found "
                f"{[(each.name, each.shape) for each in inputs]} and {sorted(outputs)}"
            )
        self._input = inputs[0].name
        self._noted: set[tuple[int, ...]] = set()
        self._batch, _, *self._size = [side if isinstance(side, int) else 0 for side in inputs[0].shape]

    def __call__(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """See :class:`Model`.

        Raises:
            UnfitFile: onnxruntime cannot run it, as at a size that the student's patches do not divide.
        """
        if all(self._size) and images.shape[1:3] != tuple(self._size):
            self._note_size(images)
            images = _resized(images, *self._size)
        size = self._batch or len(images)
        found: list[list[np.ndarray]] = []
        for start in range(0, len(images), size):
            pixels = images[start : start + size].transpose(0, 3, 1, 2).astype(np.float32) / 255
            real = len(pixels)
            pixels = np.concatenate([pixels, np.repeat(pixels[-1:], size - real, 0)]) if self._batch else pixels
            try:
                outputs = self._session.run(self._outputs, {self._input: np.ascontiguousarray(pixels)})
            except Exception as error:  # onnxruntime raises errors of many types
                size_text = f"{images.shape[1]} x {images.shape[2]}"
                raise UnfitFile(f"{self.name}: it cannot run {size_text} pixels: {_in_short(error)}") from None
            found.append([each[:real].astype(np.float32) for each in outputs])
        named = {name: np.concatenate(each) for name, each in zip(self._outputs, zip(*found, strict=True), strict=True)}
        summary, spatial = (named.get(self._prefix + kind) for kind in ("summary", "spatial"))
        if summary is None:
            assert spatial is not None  # a graph has at least one of them
            summary = spatial.mean((1, 2))
        return summary, spatial

    def _note_size(self, images: np.ndarray) -> None:
        if images.shape[1:3] not in self._noted:
            self._noted.add(images.shape[1:3])
            found, taken = (" x ".join(map(str, size)) for size in (images.shape[1:3], self._size))
            print(f"note: {self.name} takes {taken} pixels alone; images of {found} are resized to it", file=sys.stderr)


class TimmModel:
    """A timm architecture with weights of a file, or untrained.

    Raises:
        UnfitFile: timm does not know the architecture, or the weights are not its own.
    """

    def __init__(
        self,
        architecture: str,
        weights: Path | None = None,
        mean: Sequence[float] | None = None,
        std: Sequence[float] | None = None,
        seed: int = 0,
        threads: int = 1,
    ) -> None:
        import safetensors.torch
        import timm
        import torch

        torch.set_num_threads(threads)
        self.name = f"{architecture} {weights or f'untrained, seed {seed}'}"
        torch.manual_seed(seed)
        try:
            model = timm.create_model(architecture, pretrained=False)
        except RuntimeError as error:
            raise UnfitFile(f"--timm {architecture}: {_in_short(error)}") from None
        if weights is not None:
            try:
                model.load_state_dict(safetensors.torch.load_file(weights), strict=True)
            except Exception as error:  # a missing file, another format, other names: each of its own type
                raise UnfitFile(f"{weights}: no weights of {architecture}: {_in_short(error)}") from None
        self._model = model.eval().requires_grad_(False)
        card = model.pretrained_cfg or {}
        half = (0.5, 0.5, 0.5)
        self._mean, self._std = (
            torch.tensor(_three(given or card.get(key) or half)).view(1, 3, 1, 1)
            for key, given in (("mean", mean), ("std", std))
        )

    def __call__(self, images: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        """See :class:`Model`."""
        import torch

        pixels = torch.from_numpy(images.transpose(0, 3, 1, 2).astype(np.float32) / 255)
        raw = self._model.forward_features((pixels - self._mean) / self._std)
        summary = self._model.forward_head(raw, pre_logits=True)
        spatial = None
        if raw.ndim == 4:
            spatial = raw if getattr(self._model, "output_fmt", "NCHW") == "NHWC" else raw.permute(0, 2, 3, 1)
        elif raw.ndim == 3:
            tokens = raw[:, getattr(self._model, "num_prefix_tokens", 0) :]
            side = round(tokens.shape[1] ** 0.5)  # the corpora's images are square
            spatial = tokens.reshape(len(raw), side, side, -1) if side * side == tokens.shape[1] else None
        return summary.numpy(), None if spatial is None else spatial.contiguous().numpy()


def main(arguments: Sequence[str] | None = None) -> int:
    """Embed and write; 2 where a file is unfit."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("student", type=Path, nargs="?", metavar="STUDENT.onnx")
    parser.add_argument("--timm", metavar="ARCHITECTURE")
    parser.add_argument("--weights", type=Path, help="of --timm, safetensors; without it the model is untrained")
    parser.add_argument("--mean", type=float, nargs="+", help="of --timm: one number, or one for each channel")
    parser.add_argument("--std", type=float, nargs="+")
    parser.add_argument("--seed", type=int, default=0, help="of an untrained model")
    parser.add_argument("--corpora", type=Path, default=CORPORA)
    parser.add_argument("--only", nargs="+", choices=TASKS, default=list(TASKS))
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--threads", type=int, default=int(os.environ.get("OMP_NUM_THREADS") or 1))
    given = parser.parse_args(arguments)
    if (given.student is None) == (given.timm is None):
        parser.error("give either STUDENT.onnx or --timm ARCHITECTURE")
    for numbers in (given.mean, given.std):
        if numbers and len(numbers) not in (1, 3):
            parser.error("--mean and --std take one number or three")
    try:
        model: Model
        if given.timm:
            model = TimmModel(given.timm, given.weights, given.mean, given.std, given.seed, given.threads)
        else:
            model = OnnxStudent(given.student, given.threads)
        print(json.dumps(write_embeddings(model, given.corpora, given.out, given.only)))
    except UnfitFile as error:
        print(error, file=sys.stderr)
        return 2
    return 0


def write_embeddings(model: Model, corpora: Path, target: Path, only: Sequence[str] = TASKS) -> dict[str, Any]:
    """Embed the corpora in a folder and write the judge's file; return what was done.

    A model without a map gives no dense task.

    Raises:
        UnfitFile: a corpus is missing, or the model cannot run it.
    """
    begin = time.monotonic()
    arrays: dict[str, Any] = {}
    images = 0
    for task in only:
        with opened(corpora / f"{task}.npz") as corpus:
            for split in SPLITS:
                pixels = corpus[f"{split}.images"]
                images += len(pixels)
                masks = corpus[f"{split}.masks"] if f"{split}.masks" in corpus else None
                arrays |= {f"{task}.{split}.{key}": value for key, value in _embed(model, pixels, masks).items()}
                if masks is None:
                    arrays[f"{task}.{split}.labels"] = corpus[f"{split}.labels"]
                if f"{split}.pictures" in corpus:
                    arrays[f"pictures.{split}.features"] = arrays[f"{task}.{split}.features"]
                    arrays[f"pictures.{split}.labels"] = corpus[f"{split}.pictures"]
    target.parent.mkdir(parents=True, exist_ok=True)
    aside = target.with_name(f".{target.name}.{os.getpid()}.npz")
    try:
        np.savez(aside, **arrays)
        aside.replace(target)
    finally:
        aside.unlink(missing_ok=True)
    shapes = {name: list(array.shape) for name, array in arrays.items() if not name.endswith(".labels")}
    seconds = round(time.monotonic() - begin, 1)
    return {"file": str(target), "model": model.name, "images": images, "seconds": seconds, "shapes": shapes}


def position_labels(masks: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return the label of each position of a map over masks uint8 ``[N, H, W]``: that of at least half of its pixels,
    else -1; int64 ``[N, height, width]``."""
    n, rows, columns = masks.shape
    row = ((np.arange(rows) + 0.5) * height / rows).astype(int)
    column = ((np.arange(columns) + 0.5) * width / columns).astype(int)
    position = (row[:, None] * width + column[None]).ravel()
    pixels = np.bincount(position, minlength=height * width)
    classes = int(masks.max()) + 1
    labels = np.full((n, height * width), IGNORED, np.int64)
    for number, mask in enumerate(masks):
        counts = np.bincount(position * classes + mask.ravel(), minlength=height * width * classes)
        shares = counts.reshape(-1, classes) / pixels[:, None]
        clear = shares.max(1) >= LEAST_SHARE
        labels[number, clear] = shares[clear].argmax(1)
    return labels.reshape(n, height, width)


def _embed(model: Model, images: np.ndarray, masks: np.ndarray | None) -> dict[str, np.ndarray]:
    """``features``, or ``maps`` (float16: they are large) and ``labels``."""
    summaries, maps = [], []
    for start in range(0, len(images), BATCH):
        summary, spatial = model(images[start : start + BATCH])
        if masks is None:
            summaries.append(summary)
        elif spatial is not None:
            maps.append(spatial)
    if masks is None:
        return {"features": np.concatenate(summaries)}
    if not maps:
        return {}
    together = np.concatenate(maps)
    if float(np.abs(together).max()) < np.finfo(np.float16).max:
        together = together.astype(np.float16)
    return {"maps": together, "labels": position_labels(masks, *together.shape[1:3])}


@contextlib.contextmanager
def opened(path: Path):
    try:
        corpus = np.load(path, allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise UnfitFile(f"{path}: cannot be read ({error}); python -m benchmarks.teach.corpora makes it") from None
    with corpus:
        yield corpus


def _resized(images: np.ndarray, height: int, width: int) -> np.ndarray:
    resized = [Image.fromarray(image).resize((width, height), Image.Resampling.BICUBIC) for image in images]
    return np.stack([np.asarray(image) for image in resized])


def _three(numbers: Sequence[float]) -> list[float]:
    return [float(number) for number in (list(numbers) * 3)[:3]] if len(numbers) == 1 else [float(n) for n in numbers]


def _in_short(error: BaseException) -> str:
    lines = [line.strip() for line in str(error).splitlines() if line.strip()]
    return " ".join(lines[:2])[:300] if lines else type(error).__name__


if __name__ == "__main__":
    sys.exit(main())
