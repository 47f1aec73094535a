"""kNN with the index of another model: can a model take its place without all images being encoded again?

Shen et al. 2020 (arXiv 2003.11942) call features of which this is true backward compatible, and measure them so
(section 3.2): queries by the new model, the gallery by the old one.
"""

from __future__ import annotations

from radioplat.evaluation.metrics.knn import KnnResult, knn_accuracy
from radioplat.evaluation.metrics.metric import Metric, percentage
from radioplat.tracking.table import Table


class SharedIndex(Metric):
    """A :class:`KnnResult` for each listed model whose summaries have the width of ``setup.reference``'s.

    Training images are encoded by the reference, held-out images by the model. The reference's own result is its kNN.
    """

    name = figure = row = "shared_index"
    score = "top1"

    def result(self) -> dict[str, KnnResult]:
        """Compute the result of each model; none without labels, or for a single model."""
        training, queries, config = self.setup.training, self.setup.held_out, self.setup.spec.evaluate
        if self.setup.reference is None or not (training.labelled and queries.labelled):
            return {}
        options = {"k": config.knn_k, "temperature": config.knn_temperature, "search": self.setup.search}
        index = training.of(self.setup.reference)
        return {
            name: knn_accuracy(index, training.labels, queries.of(name), queries.labels, **options)
            for name, model in self.setup.models.items()
            if model.heads is not None and queries.of(name).shape[1] == index.shape[1]
        }

    @classmethod
    def tables(cls, result: dict[str, KnnResult]) -> list[Table]:
        """Return the result as tables of the report."""
        rows = [[name, percentage(r.top1), percentage(r.top5)] for name, r in result.items()]
        note = "Training images encoded by the first model, held-out images by each: can it take the first one's place?"
        return [Table(["model", "top-1", "top-5"], rows, title="kNN in the index of the first model", note=note)]
