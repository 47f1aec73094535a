"""INT8 of an RT-DETR on generated composites (:mod:`benchmarks.composites`): what PTQ loses, and what QAT has of it.

- ``fp32``: an RT-DETRv2 on a ResNet-10, trained on boxes by ``radioplat train``, then made uneven: channels are
  multiplied by 1/``FACTOR`` to ``FACTOR`` (evenly on a logarithmic scale, shuffled) and what reads them is divided,
  wherever nothing but BatchNorm and ReLU lies between two layers (``find_pairs`` of
  ``radioplat.compression.quantization.equalize``). In
  floats the outputs stay (to 1e-5), but one scale for all channels of an activation leaves the small ones few values.
  It is a net that INT8 is bad for, made so on purpose: ``PTQ as trained``, INT8 of the detector without the factor,
  says what it loses else. Cross-layer equalization would undo it and is off, as it is unless asked for.
- ``PTQ``: ``radioplat quantize`` as it is by default: INT8, ranges of the largest magnitude, here in training images.
- ``QAT``: ``radioplat quantize quantize.mode=qat``: from there ``QAT_STEPS`` steps on the boxes, and on what the
  ``fp32`` detector says (``BINDINGS``).
- ``fp32, trained on``: the control. The ``fp32`` detector for as many steps of the same, in floats: what of QAT is the
  longer training alone. (Its rate begins high again, which may cost it more than the steps bring.)

All are judged by ``radioplat evaluate``. Both drops are from ``fp32``. Factor (of 5, 8, 16 and 64), steps (100 and
150), rates (of the weights 1e-3 and 3e-4, of the scales 1, 10, 30 and 100 times that) and whether boxes are learned
were chosen on the seeds 11 and 12, whose images are none of these.
"""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import torch

import radioplat
from benchmarks.detectors import bindings_of, map_of, measured
from benchmarks.tasks_detection import detector_spec
from radioplat.compression.quantization.equalize import find_pairs
from radioplat.models.detectors.base import Detector
from radioplat.models.detectors.checkpoint import load_detector, save_detector
from radioplat.models.modifiers.fold_batchnorm import fold_pairs, following_norms
from radioplat.tasks.quantize.quantize import quantize

FLOATS, PTQ, QAT = "fp32", "PTQ", "QAT"
AS_TRAINED, CONTROL = "PTQ as trained", "fp32, trained on"
BACKBONE, IMAGES, BATCH, STEPS = "resnet10t", 400, 16, 300
FACTOR = 8.0
QAT_STEPS, QAT_LR = 100, 3e-4
SCALE_RATES = 'train.optim.lr_mults={"*_quantizer.scale": 100}'  # a scale moves 3 % a step at the most
BINDINGS = bindings_of(
    *((f"srcs.{level}", "phi_s", 1.0) for level in range(3)),
    *((f"memory.{level}", "L2", 1.0) for level in range(3)),
    ("pred_logits", "KL", 1.0),
    ("pred_boxes", "L1", 5.0),
)


def run(seed: int, folder: Path) -> dict[str, float]:
    """mAP of each form on held-out images, in percent; what is below ``folder`` is not measured again."""
    home = folder / f"quantize_{seed}"
    return measured(home, seed, IMAGES, lambda: _run(seed, home))


def gains(runs: list[dict[str, float]]) -> dict[str, list[float]]:
    """What either loses of the floats' mAP in each seed, in points."""
    forms = {"det_ptq_drop": PTQ, "det_qat_drop": QAT}
    return {name: [run[FLOATS] - run[form] for run in runs] for name, form in forms.items()}


def _run(seed: int, home: Path) -> dict[str, float]:
    spec = _spec(home, "floats", seed, STEPS)
    trained = radioplat.train(spec, say=lambda line: None).checkpoint
    uneven = home / "uneven"
    if not uneven.exists():  # written once: QAT that goes on wants the file it began with, to the byte
        part = home / "uneven.partial"
        part.mkdir(exist_ok=True)
        save_detector(made_uneven(load_detector(trained), FACTOR, seed), part)
        part.rename(uneven)
    found = {FLOATS: map_of(spec, uneven)}
    found[AS_TRAINED] = map_of(spec, _quantized(spec, trained, home / "ptq_as_trained"))
    found[PTQ] = map_of(spec, _quantized(spec, uneven, home / "ptq"))
    teacher = {"name": "floats", "pretrained_teacher_model_path": str(uneven)}
    spec |= {"distill": {"teacher": [teacher], "bindings": BINDINGS}}
    qat = ["quantize.mode=qat", f"quantize.qat.max_steps={QAT_STEPS}", f"quantize.qat.lr={QAT_LR}", SCALE_RATES]
    found[QAT] = map_of(spec, _quantized(spec, uneven, home / "qat", *qat))
    longer = _spec(home, "control", seed, QAT_STEPS) | {"distill": spec["distill"]}
    start = [f"train.pretrained_model_path={uneven}", f"train.optim.lr={QAT_LR}", "model.backbone.type=null"]
    found[CONTROL] = map_of(spec, radioplat.distill(longer, start, say=lambda line: None).checkpoint)
    return found


@torch.no_grad()
def made_uneven(detector: Detector, factor: float, seed: int) -> Detector:
    """The same function with channels of unlike sizes; see the head of the file."""
    detector, generator = copy.deepcopy(detector).eval(), torch.Generator().manual_seed(seed)
    size = detector.architecture.student.img_size
    example = torch.rand(2, 3, size, size, generator=generator)
    norms = dict(following_norms(detector, example))
    folded, _ = fold_pairs(detector, example, lambda one: [one(example).logits])
    pairs, clipped = find_pairs(folded, example)
    for maker, reader in (pair for pair in pairs if pair[0] not in clipped):
        first, second = detector.get_submodule(norms.get(maker, maker)), detector.get_submodule(reader)
        count = len(first.weight)
        by = factor ** torch.linspace(-1, 1, count)[torch.randperm(count, generator=generator)]
        first.weight.mul_(by.reshape(-1, *[1] * (first.weight.ndim - 1)))
        if first.bias is not None:
            first.bias.mul_(by)
        second.weight.div_(by.reshape(1, -1, *[1] * (second.weight.ndim - 2)))  # there are no depthwise ones
    return detector


def _spec(home: Path, name: str, seed: int, steps: int) -> dict[str, Any]:
    spec = detector_spec(home, name, {"type": BACKBONE}, seed, steps)
    spec["dataset"]["batch_size"] = BATCH
    return spec


def _quantized(spec: dict[str, Any], checkpoint: Path, folder: Path, *overrides: str) -> Path:
    where = [f"results_dir={folder}", f"quantize.checkpoint={checkpoint}", "quantize.calibration_batches=16"]
    return quantize(spec, (*where, *overrides), say=lambda line: None).student
