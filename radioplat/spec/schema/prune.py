"""Spec section ``prune``: what leaves a trained student."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from radioplat.spec.ranges import number
from radioplat.spec.schema.retrain import RetrainConfig


class PruneMode(str, Enum):
    """How much goes."""

    amount = "amount"
    threshold = "threshold"


class PruneScore(str, Enum):
    """What a channel is worth."""

    magnitude = "magnitude"  # the norm of its weights
    taylor = "taylor"  # |weight x gradient|: the first-order change of the loss (Molchanov et al. 2019)
    hessian = "hessian"  # (weight x gradient)^2: the second-order change, with the Fisher diagonal for the Hessian
    random = "random"


class RawScore(str, Enum):
    """TAO's: the norm of ``magnitude``."""

    L1 = "L1"
    L2 = "L2"


class PrunePart(str, Enum):
    """Where channels may go."""

    hidden = "hidden"  # inside a block: an MLP's hidden units, a bottleneck's channels
    heads = "heads"  # whole attention heads
    width = "width"  # of the stream between blocks: a ViT's embedding, a stage's channels


class PruneScope(str, Enum):
    """Among which channels the least worthy are looked for."""

    layer = "layer"
    all = "global"


class SparsityPattern(str, Enum):
    """Which single weights become zero."""

    unstructured = "unstructured"  # the smallest, wherever they are
    two_of_four = "2:4"  # of every four consecutive inputs the two smallest


class PruneSchedule(str, Enum):
    """How what goes is spread over rounds."""

    linear = "linear"  # the same share of the whole each time
    cubic = "cubic"  # most of it early (Zhu and Gupta 2017)
    geometric = "geometric"  # the same share of what is left each time


@dataclass
class SparsityConfig:
    """Single weights of linear layers and convolutions that become zero, and stay so while training goes on."""

    type: SparsityPattern | None = None
    amount: float = number(0.5, above=0, below=1)  # share of the weights that is zero then; of 2:4 it is a half
    scope: PruneScope = PruneScope.layer
    exclude: list[str] = field(default_factory=list)  # patterns of the backbone's layers that are left alone


@dataclass
class PruneBudget:
    """What the pruned backbone may take, as a share of what it takes now; ``amount`` is then found."""

    params: float | None = number(None, above=0, below=1)
    macs: float | None = number(None, above=0, below=1)  # multiply-accumulates of one image of dataset.img_size
    latency: float | None = number(None, above=0, below=1)  # seconds of such an image, on the machine that prunes


@dataclass
class PruneConfig:
    """Spec section ``prune``."""

    checkpoint: str | None = None  # default: results_dir/distill's (or train's) latest
    results_dir: str | None = None
    mode: PruneMode = PruneMode.amount
    amount: float = number(0.5, at_least=0, below=1)  # share of the channels that goes
    # channels go that are worth less than this share of their layer's most worthy one
    threshold: float = number(0.1, at_least=0, below=1)
    granularity: int = number(8, at_least=1)  # channels that stay are a multiple of this
    raw_prune_score: RawScore = RawScore.L2
    score: PruneScore = PruneScore.magnitude  # (+)
    scope: PruneScope = PruneScope.layer  # (+)
    # (+) unset: hidden and heads; none where only sparsity is asked for
    parts: list[PrunePart] | None = None
    exclude: list[str] = field(default_factory=list)  # (+) patterns of the backbone's layers that are left alone
    # (+) blocks that go whole, those that change their input least: a count
    blocks: int = number(0, at_least=0)
    budget: PruneBudget = field(default_factory=PruneBudget)  # (+)
    sparsity: SparsityConfig = field(default_factory=SparsityConfig)  # (+)
    # (+) micro-batches that blocks, and channels by gradients, are judged over
    score_batches: int = number(8, at_least=1)
    rounds: int = number(1, at_least=1, at_most=1000)  # (+) so often something goes, with retraining after each time
    schedule: PruneSchedule = PruneSchedule.geometric  # (+)
    retrain: RetrainConfig = field(default_factory=RetrainConfig)  # (+)

    @property
    def cut(self) -> list[PrunePart]:
        """Where channels go."""
        if self.parts is not None:
            return self.parts
        return [] if self.sparsity.type is not None else [PrunePart.hidden, PrunePart.heads]
