"""The base class of an evaluation's metrics, and their inputs.

A new metric is a subclass of :class:`Metric` in a file here, a line in
:data:`radioplat.evaluation.measure.registry.METRICS`, and a field of ``EvaluateConfig`` if it has settings.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from operator import attrgetter
from statistics import fmean
from typing import Any, ClassVar, Protocol

from torch import Tensor

from radioplat.common.ranks import Ranks
from radioplat.data.index.shard_index import ShardIndex
from radioplat.errors import Problem
from radioplat.evaluation.metrics.encoded_batch import EncodedBatch, Summaries
from radioplat.evaluation.models.evaluated_model import EvaluatedModel
from radioplat.models.student.architecture import StudentArchitecture
from radioplat.spec.schema.evaluate import EvaluateConfig
from radioplat.spec.schema.root import Spec
from radioplat.tracking.table import Table

Picture = tuple[str, bytes]  # caption, PNG


@dataclass
class Setup:
    """The inputs of all metrics of an evaluation.

    Attributes:
        models: by name: the evaluated models, then the teachers, which have no heads.
        kinds: for each teacher the kinds of features (``summary``, ``spatial``) that students have a head for.
        held_out_images: number of held-out images.
        reference: name of the model that the others are compared with; None for no comparison.
        class_names: by label.
        device: for the metrics' own computations.
        batch_size, threads: of the reader of images.
        search: if given, makes the nearest-neighbour search of kNN from a bank and its labels.
        right: by model, whether kNN names each labelled held-out image rightly, bool ``[M]``; set by metric ``knn``.
        training, held_out: summaries and labels of the images so far; complete when results are computed.
    """

    spec: Spec
    models: Mapping[str, EvaluatedModel]
    kinds: Mapping[str, Sequence[str]]
    held_out_images: int
    reference: str | None = None
    class_names: Sequence[str] = ()
    device: str = "cpu"
    batch_size: int = 1
    threads: int = 1
    search: Callable[[Tensor, Tensor], Any] | None = None
    right: dict[str, Tensor] = field(default_factory=dict)
    training: Summaries = field(default_factory=Summaries)
    held_out: Summaries = field(default_factory=Summaries)

    @property
    def at_usual_size(self) -> dict[str, EvaluatedModel]:
        """The models, without the student at other resolutions or with fewer tokens."""
        return {name: model for name, model in self.models.items() if model.variant_of is None}


@dataclass(frozen=True)
class Inputs:
    """Inputs of an evaluation before anything is encoded; None if unknown.

    Attributes:
        architecture: of the student, or the first of several.
        train, val: the indexed splits.
        models: those of ``evaluate.models`` that run on this machine; empty for a single checkpoint.
    """

    architecture: StudentArchitecture | None = None
    train: ShardIndex | None = None
    val: ShardIndex | None = None
    models: Mapping[str, EvaluatedModel] = field(default_factory=dict)


class ModelRow(Protocol):
    """A row of the table of models side by side.

    Attributes:
        difference: from the first model, by figure, in percentage points.
    """

    difference: dict[str, float]

    def figures(self) -> dict[str, float]:
        """Return the model's figures: by a metric's ``row``, or ``<row>/<part>``."""
        ...


@dataclass(frozen=True)
class Column:
    """A column of the table of models side by side, with one figure of each model.

    Attributes:
        figure: its name in :meth:`ModelRow.figures`.
        percent: whether it is a share, shown in percent.
        own: whether it is a user's, of an unknown scale.
    """

    figure: str
    percent: bool = False
    own: bool = False

    def value(self, row: ModelRow) -> str | None:
        """Format the figure of a model; None if it has none."""
        value = row.figures().get(self.figure)
        if value is None:
            return None
        return f"{100 * value:.1f}" if self.percent else f"{value:.4g}" if self.own else f"{value:.3f}"

    def difference(self, row: ModelRow) -> str | None:
        """Format the difference from the first model in percentage points; None if there is none, or for a user's."""
        difference = row.difference.get(self.figure)
        return None if difference is None or self.own else f"{round(difference, 1) + 0.0:+.1f}"  # no -0.0


class Metric(ABC):
    """Base class of metrics, which measure all models of an evaluation; a new object for each evaluation.

    Attributes:
        name: key of the result in ``results.json``.
        score: attribute of each model's result that is its only figure; empty if there are several, or none.
        figure: name of the figure in ``status.json``, where it is ``<figure>/<model>``.
        row: key of a model's own figure in its row of ``evaluate.models``; empty if rows have none.
        column: heading of that figure as a percentage, in the table of models side by side; empty for no column.
        objective: name for gates and for objectives of ``tune``; empty if it cannot be one.
        requires: requirements of the figure, for the message that it is missing.
        switch: attribute of the section ``evaluate`` that is true if the metric is requested; empty: it always is.
        option: display name of the metric, and the fields of ``evaluate`` that request it, for the list of metrics that
            are not requested.
        setup: see :class:`Setup`.
        notes: lines about the result: parts that were left out, with the reason.
        pictures: for the report.
    """

    name: ClassVar[str]
    score: ClassVar[str] = ""
    figure: ClassVar[str] = ""
    row: ClassVar[str] = ""
    column: ClassVar[str] = ""
    objective: ClassVar[str] = ""
    requires: ClassVar[str] = ""
    switch: ClassVar[str] = ""
    option: ClassVar[tuple[str, str] | None] = None

    def __init__(self, setup: Setup) -> None:
        self.setup = setup
        self.notes: list[str] = []
        self.pictures: list[Picture] = []

    @classmethod
    def requested(cls, config: EvaluateConfig) -> bool:
        """Return whether the spec requests the metric."""
        return not cls.switch or bool(attrgetter(cls.switch)(config))

    @classmethod
    def unused_options(cls, config: EvaluateConfig) -> Iterator[tuple[str, str]]:
        """Yield an :attr:`option` for each part of the metric that the spec does not request."""
        if cls.option and not cls.requested(config):
            yield cls.option

    @classmethod
    def problems(cls, spec: Spec, inputs: Inputs) -> Iterator[Problem]:
        """Yield the reasons why the metric cannot be measured although the spec requests it."""
        yield from ()

    @classmethod
    def facts(cls, spec: Spec) -> Iterator[str]:
        """Yield lines for ``plan`` about a metric that is requested."""
        yield from ()

    def learn(self, batch: EncodedBatch) -> None:  # noqa: B027
        """Add a batch of training images; all of them come before the first held-out image."""

    def update(self, batch: EncodedBatch) -> None:  # noqa: B027
        """Add a batch of held-out images."""

    @abstractmethod
    def result(self) -> Any:
        """Compute the result: a mapping by model name, which the methods below read.

        Raises:
            RadioplatError: it cannot be computed.
        """

    @classmethod
    def tables(cls, result: Any) -> list[Table]:
        """Return the result as tables of the report."""
        return []

    @classmethod
    def figures(cls, result: Any) -> dict[str, float]:
        """Return the figures for ``status.json``, by name."""
        values = {name: getattr(value, cls.score) for name, value in result.items()} if cls.score else {}
        return {f"{cls.figure}/{name}": value for name, value in values.items() if value is not None}

    @classmethod
    def as_json(cls, result: Any) -> dict[str, Any]:
        """Return the content for ``results.json``, by key."""
        return {cls.name: plain(result)}

    @classmethod
    def of_model(cls, result: Any, model: str) -> float | dict[str, float] | None:
        """Return the figure of one model for its row, or several by name; None if it has none."""
        return getattr(result[model], cls.score) if cls.row and model in result else None

    @classmethod
    def objectives(cls, result: Any, model: str) -> dict[str, float]:
        """Return the values of one model for gates and objectives, by their names."""
        value = cls.of_model(result, model)
        value = (fmean(value.values()) if value else None) if isinstance(value, dict) else value
        return {cls.objective: value} if cls.objective and value is not None else {}

    @classmethod
    def columns(cls, rows: Sequence[ModelRow]) -> dict[str, Column]:
        """Return the metric's columns of the table of models side by side, by their headings."""
        return {cls.column: Column(cls.row, percent=True)} if cls.column else {}


class SharedMetric(Metric):
    """A metric that the workers of a run can measure together, each on its share of the images."""

    def share_learned(self, ranks: Ranks) -> None:  # noqa: B027
        """Join what all ranks learned from their training images; every rank calls it before the first held-out one."""

    @abstractmethod
    def share(self, ranks: Ranks) -> None:
        """Join the measurements of all ranks; every rank calls it after the last image, and has the same result then.

        Raises:
            RadioplatError: on every rank, if the metric cannot be computed.
        """


def percentage(share: float | None) -> str | None:
    """Format a share in [0, 1]; None stays None."""
    return None if share is None else f"{100 * share:.1f} %"


def plain(value: Any) -> Any:
    """Convert dataclasses, at any depth of mappings and lists, to mappings that can be written as JSON."""
    if is_dataclass(value) and not isinstance(value, type):
        return asdict(value)
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list) else value
