"""A net that quantization hurts, on a real task: scikit-learn's handwritten digits.

Channels of a depthwise net are multiplied by 1/``factor`` to ``factor`` and what reads them is divided by it. Under
ReLU that changes nothing of what the net computes in floats (the accuracy is asked again and must be the same), but one
scale for all channels of an activation then leaves the small ones few values. Cross-layer equalization would undo it
and is off.

Of each seed's own split 30 % are the test images, which only the last figures see. The rest: training, calibration
(a part of training, for the ranges), validation (which epoch is taken).
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import nn

from radioplat.compression.quantization.calibrate import calibrate
from radioplat.models.quantized.fake_quantize import NumberFormat
from radioplat.models.quantized.layers import can_be_quantized, quantize_layer
from radioplat.optim.quantizer_scale_steps import RELATIVE, step_relatively
from radioplat.spec.schema.quantize import Calibrator, QuantizeConfig
from radioplat.tracking.results import write_atomic

FACTORS = (8, 16)
WIDTHS = (32, 64, 64)
EPOCHS, QAT_EPOCHS, BATCH = 60, 40, 64
QAT_LR, SCALE_LR = 1e-3, 1e-2  # the second relative to the scale; both chosen on validation images of other seeds
CALIBRATION = 200  # images


@dataclass(frozen=True)
class Digits:
    """Images ``[N, 1, 8, 8]`` in [0, 1] and labels, by split."""

    train: tuple[torch.Tensor, torch.Tensor]
    val: tuple[torch.Tensor, torch.Tensor]
    test: tuple[torch.Tensor, torch.Tensor]

    @property
    def calibration(self) -> torch.Tensor:
        """Images for the ranges: training images."""
        return self.train[0][:CALIBRATION]


def split_digits(seed: int) -> Digits:
    """Test 30 %, validation 10 %, training 60 %, each with its share of every digit."""
    digits = load_digits()
    images, labels = (digits.images / 16).astype(np.float32)[:, None], digits.target
    rest, test = train_test_split(np.arange(len(labels)), test_size=0.3, stratify=labels, random_state=seed)
    train, val = train_test_split(rest, test_size=1 / 7, stratify=labels[rest], random_state=seed)
    return Digits(*((torch.tensor(images[rows]), torch.tensor(labels[rows])) for rows in (train, val, test)))


class DigitsNet(nn.Module):
    """Convolution, then depthwise and pointwise ones by turns, each with BatchNorm and ReLU; mean; linear."""

    def __init__(self) -> None:
        super().__init__()
        layers, before = [_conv(1, WIDTHS[0], 3)], WIDTHS[0]
        for i, width in enumerate(WIDTHS[1:]):
            layers += [_conv(before, before, 3, stride=1 + i, groups=before), _conv(before, width, 1)]
            before = width
        self.layers = nn.Sequential(*layers)
        self.classifier = nn.Linear(before, 10)

    def features(self, images: torch.Tensor) -> torch.Tensor:
        """``[B, D]``: what the classifier reads."""
        return self.layers(images).mean((2, 3))

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Logits ``[B, 10]`` of images ``[B, 1, 8, 8]``."""
        return self.classifier(self.features(images))


def _conv(before: int, after: int, side: int, stride: int = 1, groups: int = 1) -> nn.Sequential:
    conv = nn.Conv2d(before, after, side, stride, side // 2, groups=groups, bias=False)
    return nn.Sequential(conv, nn.BatchNorm2d(after), nn.ReLU())


def trained(digits: Digits, seed: int) -> DigitsNet:
    """Trained on labels, the epoch that is best on the validation images; BatchNorm is folded."""
    torch.manual_seed(seed)
    net = DigitsNet()
    optimizer = torch.optim.AdamW(net.parameters(), 3e-3, weight_decay=0.05)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, EPOCHS)

    def loss(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        return F.cross_entropy(net(_shifted(images)), labels)

    return _folded(_best(net, digits, optimizer, schedule, EPOCHS, loss))


def rescaled(net: DigitsNet, factor: float, seed: int) -> DigitsNet:
    """The same function, the channels behind every convolution multiplied by 1/``factor`` to ``factor``, drawn evenly
    on a logarithmic scale; the next layer is divided by it."""
    net, generator = copy.deepcopy(net), torch.Generator().manual_seed(seed)
    convs = [layer[0] for layer in net.layers]
    with torch.no_grad():
        for conv, reader in zip(convs, [*convs[1:], net.classifier], strict=True):
            by = factor ** (2 * torch.rand(conv.out_channels, generator=generator) - 1)
            conv.weight *= by.reshape(-1, 1, 1, 1)
            conv.bias *= by
            along = (-1, 1, 1, 1) if getattr(reader, "groups", 1) > 1 else (1, -1, 1, 1)[: reader.weight.ndim]
            reader.weight /= by.reshape(along)
    return net


def quantized(net: DigitsNet, images: torch.Tensor) -> DigitsNet:
    """INT8: weights a scale for each output channel, activations one scale, of the largest magnitude among ``images``.

    All convolutions and the linear layer are quantized; calibrated as ``radioplat quantize`` calibrates a student.
    """
    net = copy.deepcopy(net).eval()
    for layer in [m for m in net.modules() if can_be_quantized(m)]:
        quantize_layer(layer, NumberFormat.int8, NumberFormat.int8)
    calibrate(net, QuantizeConfig(algorithm=Calibrator.minmax), lambda: net(images))
    return net


def quantization_aware(net: DigitsNet, teacher: DigitsNet, digits: Digits, seed: int) -> DigitsNet:
    """``net``, quantized and calibrated, trained with its scales to say what ``teacher`` says: features and logits.

    The loop is this benchmark's own: the digits' net is no student of radioplat.
    """
    torch.manual_seed(seed)
    net, scales = copy.deepcopy(net), []
    weights = []
    for name, parameter in net.named_parameters():
        (scales if name.endswith(".scale") else weights).append(parameter)
    groups = [{"params": weights}, {"params": scales, "lr": SCALE_LR, RELATIVE: True}]
    optimizer = torch.optim.AdamW(groups, QAT_LR, weight_decay=0.0)
    step_relatively(optimizer)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, QAT_EPOCHS)

    def loss(images: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
        images = _shifted(images)
        with torch.no_grad():
            wanted = teacher.features(images)
        features = net.features(images)
        gap = F.mse_loss(features, wanted) / wanted.var()
        said, meant = (F.log_softmax(m.classifier(x), 1) for m, x in ((net, features), (teacher, wanted)))
        return gap + F.kl_div(said, meant, log_target=True, reduction="batchmean")

    return _best(net, digits, optimizer, schedule, QAT_EPOCHS, loss)


@torch.no_grad()
def accuracy(net: DigitsNet, split: tuple[torch.Tensor, torch.Tensor]) -> float:
    """Percent of the images that are named rightly."""
    images, labels = split
    return 100 * float((net.eval()(images).argmax(1) == labels).float().mean())


def run_digits(seed: int, folder: Path) -> dict[str, float]:
    """Accuracies on the test images, in percent: ``fp32`` and, of each factor, ``fp32_x8``, ``ptq_x8``, ``qat_x8``.

    They are kept below ``folder``; what an earlier call found there is not measured again.
    """
    done = folder / f"seed_{seed}" / "digits.json"
    if done.exists():
        return json.loads(done.read_text())
    digits = split_digits(seed)
    net = trained(digits, seed)
    found = {"fp32": accuracy(net, digits.test)}
    for factor in FACTORS:
        uneven = rescaled(net, factor, seed)
        ptq = quantized(uneven, digits.calibration)
        qat = quantization_aware(ptq, uneven, digits, seed)
        for name, model in (("fp32", uneven), ("ptq", ptq), ("qat", qat)):
            found[f"{name}_x{factor}"] = accuracy(model, digits.test)
    write_atomic(done, json.dumps(found, indent=1))
    return found


def _best(net, digits: Digits, optimizer, schedule, epochs: int, loss) -> DigitsNet:
    """Train ``net``; what it was after the epoch with the highest accuracy on the validation images."""
    kept, best = copy.deepcopy(net), -1.0
    for _ in range(epochs):
        net.train()
        for images, labels in _batches(*digits.train):
            optimizer.zero_grad()
            loss(images, labels).backward()
            optimizer.step()
        schedule.step()
        if (now := accuracy(net, digits.val)) >= best:  # of equals the later, which has seen more
            kept, best = copy.deepcopy(net), now
    return kept


def _batches(images: torch.Tensor, labels: torch.Tensor) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
    for rows in torch.randperm(len(images)).split(BATCH):
        yield images[rows], labels[rows]


def _shifted(images: torch.Tensor) -> torch.Tensor:
    """By up to one pixel along each axis, the whole batch alike."""
    down, right = (int(n) for n in torch.randint(-1, 2, (2,)))
    return F.pad(images, (1, 1, 1, 1))[:, :, 1 + down : 9 + down, 1 + right : 9 + right]


def _folded(net: DigitsNet) -> DigitsNet:
    for layer in net.layers:
        layer[0], layer[1] = nn.utils.fusion.fuse_conv_bn_eval(layer[0].eval(), layer[1].eval()), nn.Identity()
    return net
