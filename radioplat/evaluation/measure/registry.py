"""Every metric of an evaluation, in the order of the report."""

from __future__ import annotations

from radioplat.evaluation.masks.metrics import Change, Segmentation
from radioplat.evaluation.metrics.accuracy import Accuracy
from radioplat.evaluation.metrics.correspondence import Correspondence
from radioplat.evaluation.metrics.feature_similarity import FeatureSimilarity
from radioplat.evaluation.metrics.fidelity import Fidelity
from radioplat.evaluation.metrics.knn import Knn
from radioplat.evaluation.metrics.linear_probe import LinearProbe
from radioplat.evaluation.metrics.metric import Metric
from radioplat.evaluation.metrics.own_metrics import OwnMetrics
from radioplat.evaluation.metrics.paired_knn import PairedKnn
from radioplat.evaluation.metrics.resolution_agreement import ResolutionAgreement
from radioplat.evaluation.metrics.shared_index import SharedIndex
from radioplat.evaluation.metrics.zero_shot import ZeroShot

METRICS: tuple[type[Metric], ...] = (
    Fidelity,
    ResolutionAgreement,
    Knn,
    LinearProbe,
    Accuracy,
    Segmentation,
    Change,
    Correspondence,
    ZeroShot,
    SharedIndex,
    PairedKnn,
    FeatureSimilarity,
    OwnMetrics,
)


def objective_needs() -> str:
    """Return a sentence with the requirements of each metric that gates and objectives can compare."""
    return ", ".join(f"{metric.objective} needs {metric.requires}" for metric in METRICS if metric.objective)
