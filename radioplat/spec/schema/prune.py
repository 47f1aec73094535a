"""Spec section ``prune``: remove channels, heads, blocks or single weights of a trained student."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum

from radioplat.spec.ranges import number
from radioplat.spec.schema.retrain import RetrainConfig


class PruneMode(str, Enum):
    """Criterion for the number of removed channels: a share, or a threshold on the score."""

    amount = "amount"
    threshold = "threshold"


class PruneScore(str, Enum):
    """Importance score of a channel."""

    magnitude = "magnitude"  # the norm of its weights
    taylor = "taylor"  # |weight x gradient|: the first-order change of the loss (Molchanov et al. 2019)
    hessian = "hessian"  # (weight x gradient)^2: the second-order change, with the Fisher diagonal for the Hessian
    random = "random"

    @property
    def needs_gradients(self) -> bool:
        """Return whether the score needs gradients of the loss."""
        return self in (PruneScore.taylor, PruneScore.hessian)


class RawScore(str, Enum):
    """TAO's field: the norm for ``score: magnitude``."""

    L1 = "L1"
    L2 = "L2"


class PrunePart(str, Enum):
    """Dimensions that may be pruned."""

    hidden = "hidden"  # inside a block: an MLP's hidden units, a bottleneck's channels
    heads = "heads"  # whole attention heads
    width = "width"  # between blocks: a ViT's embedding, a stage's channels


class PruneScope(str, Enum):
    """Set of channels that are ranked together."""

    layer = "layer"
    all = "global"


class SparsityPattern(str, Enum):
    """Pattern of the single weights that become zero."""

    unstructured = "unstructured"  # the smallest, anywhere
    two_of_four = "2:4"  # the two smallest of every four consecutive inputs


class PruneSchedule(str, Enum):
    """Distribution of the pruning over rounds."""

    linear = "linear"  # the same share of the original in each round
    cubic = "cubic"  # most of it in early rounds (Zhu and Gupta 2017)
    geometric = "geometric"  # the same share of the remaining channels in each round


@dataclass
class SparsityConfig:
    """Zero single weights of linear layers and convolutions, and keep them zero during further training."""

    type: SparsityPattern | None = None  # pattern of the zeros; unset: none
    amount: float = number(0.5, above=0, below=1)  # share of zero weights; always one half for 2:4
    scope: PruneScope = PruneScope.layer
    exclude: list[str] = field(default_factory=list)  # name patterns of backbone layers to leave unchanged


@dataclass
class PruneBudget:
    """Limits of the pruned backbone as shares of the original; ``amount`` is then searched for."""

    params: float | None = number(None, above=0, below=1)  # share of the parameters
    macs: float | None = number(None, above=0, below=1)  # multiply-accumulates of one image at dataset.img_size
    latency: float | None = number(None, above=0, below=1)  # of its engine for such an image on the pruning machine


@dataclass
class PruneConfig:
    """Spec section ``prune``."""

    checkpoint: str | None = None  # checkpoint to read; default: results_dir/distill's (or train's) latest
    results_dir: str | None = None  # folder of this task; default: results_dir/prune
    mode: PruneMode = PruneMode.amount
    amount: float = number(0.5, at_least=0, below=1)  # share of the channels to remove
    # remove channels whose score is below this share of the highest score in their layer
    threshold: float = number(0.1, at_least=0, below=1)
    granularity: int = number(8, at_least=1)  # remaining channels are a multiple of this
    raw_prune_score: RawScore = RawScore.L2
    score: PruneScore = PruneScore.magnitude  # (+)
    scope: PruneScope = PruneScope.layer  # (+)
    # (+) what is cut; unset: hidden and heads; nothing if only sparsity is set
    parts: list[PrunePart] | None = None
    # (+) patterns of the backbone's layers that are left alone, and of blocks that stay
    exclude: list[str] = field(default_factory=list)
    # (+) number of blocks to remove: those that change their input least
    blocks: int = number(0, at_least=0)
    budget: PruneBudget = field(default_factory=PruneBudget)  # (+)
    sparsity: SparsityConfig = field(default_factory=SparsityConfig)  # (+)
    # (+) micro-batches for the scores of blocks, and for scores by gradients
    score_batches: int = number(8, at_least=1)
    # (+) training images that BatchNorm's statistics are estimated from after pruning; 0: they stay. Without effect
    # with reconstruction_images
    batchnorm_images: int = number(512, at_least=0)
    # (+) training images from which the last layer of each block is fitted again after pruning, so that the block gives
    # what it gave before; 0: the weights stay
    reconstruction_images: int = number(0, at_least=0)
    rounds: int = number(1, at_least=1, at_most=1000)  # (+) number of pruning rounds, each followed by retraining
    schedule: PruneSchedule = PruneSchedule.geometric  # (+)
    retrain: RetrainConfig = field(default_factory=RetrainConfig)  # (+)

    @property
    def cut(self) -> list[PrunePart]:
        """Dimensions to prune."""
        if self.parts is not None:
            return self.parts
        return [] if self.sparsity.type is not None else [PrunePart.hidden, PrunePart.heads]
