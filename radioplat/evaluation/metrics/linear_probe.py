"""A linear classifier on frozen features: multinomial logistic regression, fitted to its optimum by L-BFGS.

The problem is convex, so that the result does not depend on learning rate, order or seed. Features are first
standardized by the training rows, so that one range of weight decays suits all models; the returned weights apply to
raw features.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from radioplat.errors import Problem, RadioplatError
from radioplat.evaluation.metrics.metric import Inputs, Metric, percentage
from radioplat.evaluation.models.held_out_labels import LABELS, highest_label
from radioplat.spec.schema.evaluate import LinearProbeConfig
from radioplat.spec.schema.root import Spec
from radioplat.tracking.table import Table

_FLAT = 1e-6  # a feature whose deviation is below this share of its magnitude is constant


@dataclass(frozen=True)
class LinearClassifier:
    """``logits = features @ weight.T + bias``.

    Attributes:
        weight: ``[C, D]`` for raw features.
        bias: ``[C]``.
    """

    weight: Tensor
    bias: Tensor

    def logits(self, features: Tensor) -> Tensor:
        """Map ``[..., D]`` to ``[..., C]``."""
        return features.to(self.weight.dtype) @ self.weight.T + self.bias


@dataclass(frozen=True)
class Chosen:
    """A classifier fitted on all training rows with the weight decay that was best on held-out ones.

    Attributes:
        scores: for each weight decay the accuracy on the held-out rows, weighted by their targets.
    """

    classifier: LinearClassifier
    weight_decay: float
    scores: dict[float, float]


@dataclass(frozen=True)
class LinearProbeResult:
    """Result of :func:`linear_probe`.

    Attributes:
        top1: share of queries classified right, in [0, 1].
        weight_decay: the one that was chosen, on training images alone.
        count: number of labelled queries.
        bank: number of labelled training images.
        classes: number of classes.
    """

    top1: float
    weight_decay: float
    count: int
    bank: int
    classes: int


@torch.inference_mode(False)
@torch.enable_grad()
def fit(
    features: Tensor, targets: Tensor, weight_decay: float, max_iter: int = 200, start: LinearClassifier | None = None
) -> LinearClassifier:
    """Minimise ``mean cross-entropy + weight_decay / 2 * |W|^2`` over standardized features; the bias is not penalized.

    Args:
        features: ``[R, D]``, fp32 or fp64; computed in that dtype.
        targets: ``[R, C]``, not negative: one-hot rows, or shares of classes; the mean is weighted by them.
        start: initial classifier; the optimum does not depend on it.
    """
    features, targets = features.detach().clone(), targets.detach().clone()  # inference tensors have no gradient
    mean, scale = _standard(features)
    x = (features - mean) / scale
    total = targets.sum().clamp_min(1e-12)
    if start is None:
        weight, bias = x.new_zeros(targets.shape[1], x.shape[1]), x.new_zeros(targets.shape[1])
    else:
        weight, bias = start.weight * scale, start.bias + start.weight @ mean
    weight, bias = weight.clone().requires_grad_(), bias.clone().requires_grad_()
    optimizer = torch.optim.LBFGS(
        [weight, bias], max_iter=max_iter, tolerance_grad=1e-7, tolerance_change=1e-10, line_search_fn="strong_wolfe"
    )

    def loss() -> Tensor:
        """Return the objective after computing its gradient, as L-BFGS requires."""
        optimizer.zero_grad()
        entropy = -(targets * F.log_softmax(x @ weight.T + bias, dim=1)).sum() / total
        value = entropy + weight_decay / 2 * weight.square().sum()
        value.backward()
        return value

    optimizer.step(loss)
    raw = weight.detach() / scale
    return LinearClassifier(raw, bias.detach() - raw @ mean)


def choose(
    features: Tensor, targets: Tensor, held_out: Tensor, weight_decays: Sequence[float], max_iter: int = 200
) -> Chosen:
    """Fit with each weight decay on the rows that are not held out, and with the best on all of them.

    Args:
        features, targets: as for :func:`fit`.
        held_out: bool ``[R]``.
    """
    scores: dict[float, tuple[float, float]] = {}
    classifiers: dict[float, LinearClassifier] = {}
    classifier = None
    for decay in sorted(set(weight_decays), reverse=True):  # the strongest first: its optimum is nearest to zero
        classifier = fit(features[~held_out], targets[~held_out], decay, max_iter, classifier)
        classifiers[decay] = classifier
        scores[decay] = _score(classifier, features[held_out], targets[held_out])
    best = max(scores, key=lambda decay: scores[decay])
    shares = {decay: share for decay, (share, _) in sorted(scores.items())}
    # Start nearby: with a weak decay a start from zero stops before the optimum, at a point that rounding can change.
    return Chosen(fit(features, targets, best, max_iter, classifiers[best]), best, shares)


def linear_probe(
    bank: Tensor,
    bank_labels: Tensor,
    queries: Tensor,
    query_labels: Tensor,
    config: LinearProbeConfig,
    seed: int = 0,
) -> LinearProbeResult:
    """Fit on labelled training features and classify held-out ones, which do not influence the fit.

    Args:
        bank, queries: ``[N, D]`` and ``[M, D]``.
        bank_labels, query_labels: int; negative without a label.
        seed: selects the training rows on which weight decays are compared.

    Raises:
        RadioplatError: one of the sides has no label, fewer than two classes, or too few images to hold any out.
    """
    bank, bank_labels = bank[bank_labels >= 0].float(), bank_labels[bank_labels >= 0].long()
    queries, query_labels = queries[query_labels >= 0].float(), query_labels[query_labels >= 0].long()
    for labels, split in ((bank_labels, "train"), (query_labels, "val")):
        if not len(labels):
            raise RadioplatError(
                "a linear probe needs labelled images",
                where=f"dataset.{split}_dataset",
                hint=LABELS,
            )
    if not (bank.isfinite().all() and queries.isfinite().all()):
        raise RadioplatError("a linear probe was given features that are not finite")
    classes = int(max(bank_labels.max(), query_labels.max())) + 1
    if len(bank_labels.unique()) < 2:
        raise RadioplatError("a linear probe needs at least two classes", where="dataset.train_dataset")
    held = held_out_rows(bank_labels, config.held_out, seed)
    if not held.any():
        raise RadioplatError(
            f"no class has enough of the {len(bank)} labelled images to hold any out",
            where="evaluate.linear_probe.held_out",
            hint="Give more images of a class, or hold out a larger share.",
        )
    targets = F.one_hot(bank_labels, classes).to(bank.dtype)
    chosen = choose(bank, targets, held, config.weight_decays, config.max_iter)
    right = chosen.classifier.logits(queries).argmax(1) == query_labels
    return LinearProbeResult(float(right.float().mean()), chosen.weight_decay, len(queries), len(bank), classes)


def held_out_rows(labels: Tensor, share: float, seed: int) -> Tensor:
    """Select a seeded ``share`` of each class, rounded down, and never all of it: bool ``[N]``."""
    generator = torch.Generator().manual_seed(seed)
    held = torch.zeros(len(labels), dtype=torch.bool)
    order = torch.randperm(len(labels), generator=generator)
    for label in labels.unique():
        rows = order[(labels.cpu() == label.cpu())[order]]
        held[rows[: min(int(share * len(rows)), len(rows) - 1)]] = True
    return held.to(labels.device)


def _standard(features: Tensor) -> tuple[Tensor, Tensor]:
    mean = features.mean(0)
    scale = (features - mean).square().mean(0).sqrt()
    dead = scale <= _FLAT * features.abs().mean(0).clamp_min(1e-12)
    return mean, torch.where(dead, 1.0, scale)


def _score(classifier: LinearClassifier, features: Tensor, targets: Tensor) -> tuple[float, float]:
    """Return the accuracy weighted by the targets, and the negative cross-entropy, which resolves ties."""
    logits = classifier.logits(features)
    total = targets.sum().clamp_min(1e-12)
    share = targets.gather(1, logits.argmax(1, keepdim=True)).sum() / total
    return float(share), float((targets * F.log_softmax(logits, dim=1)).sum() / total)


class LinearProbe(Metric):
    """Metric ``linear_probe``: a :class:`LinearProbeResult` for each model; none if a split has no labels."""

    name, score = "linear", "top1"
    figure = row = "linear_probe"
    column = "linear probe, %"
    switch = "linear_probe.enable"
    option = ("linear probe", "linear_probe.enable")

    @classmethod
    def problems(cls, spec: Spec, inputs: Inputs) -> Iterator[Problem]:
        """Yield the reasons why the metric cannot be measured."""
        for index, name in ((inputs.train, "train"), (inputs.val, "val")):
            if index is not None and highest_label(index) < 0:
                hint = f"{LABELS} Or evaluate.linear_probe.enable: false."
                message = "a linear probe needs labelled images, and none has a label"
                yield Problem(message, f"dataset.{name}_dataset", hint)

    def result(self) -> dict[str, LinearProbeResult]:
        """Compute the result of each model."""
        bank, queries, spec = self.setup.training, self.setup.held_out, self.setup.spec
        if not (bank.labelled and queries.labelled):
            return {}
        config, seed = spec.evaluate.linear_probe, spec.dataset.val_dataset.seed
        return {
            name: linear_probe(bank.of(name), bank.labels, queries.of(name), queries.labels, config, seed)
            for name in self.setup.at_usual_size
        }

    @classmethod
    def tables(cls, result: dict[str, LinearProbeResult]) -> list[Table]:
        """Return the result as tables of the report."""
        rows = [[name, percentage(r.top1), f"{r.weight_decay:g}"] for name, r in result.items()]
        notes = [
            f"{r.count} held-out images, fitted on {r.bank} labelled training images; the weight decay was chosen on a "
            "part of those."
            for r in result.values()
        ]
        title = "Linear probe on held-out images"
        return [Table(["model", "top-1", "weight decay"], rows, title, note="".join(notes[:1]))]
