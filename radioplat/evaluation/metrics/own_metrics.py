"""A user's own metrics, by import path: ``evaluate.metrics``."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from radioplat.common.imports import import_object
from radioplat.errors import Problem, RadioplatError, SpecError, problems_of
from radioplat.evaluation.metrics.encoded_batch import EncodedBatch
from radioplat.evaluation.metrics.metric import Column, Inputs, Metric, ModelRow, Setup
from radioplat.spec.schema.evaluate import EvaluateConfig
from radioplat.spec.schema.root import Spec
from radioplat.tracking.table import Table

_HINT = (
    "A class has update(batch) and result(), which returns a number for each model by name; a function takes "
    "summaries [N, D] and labels [N] of one model and returns a number."
)


@dataclass(frozen=True)
class _OwnMetric:
    """One entry of ``evaluate.metrics``.

    Attributes:
        instance: of a user's class; None for a function.
    """

    path: str
    where: str
    code: Callable[..., Any]
    instance: Any = None

    @property
    def name(self) -> str:
        """The name of the function or class, without its module."""
        return self.path.rpartition(":")[2]

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Call the user's code.

        Raises:
            RadioplatError: the code raised an exception; the message names the entry.
        """
        try:
            return function(*arguments)
        except Exception as error:
            raise RadioplatError(f"{self.path} failed: {type(error).__name__}: {error}", where=self.where) from error

    def numbers(self, values: Any) -> dict[str, float]:
        """Return a finite number for each model.

        Raises:
            RadioplatError: ``values`` are not of that form.
        """
        if not isinstance(values, Mapping):
            raise RadioplatError(f"{self.path} returned {type(values).__name__}", where=self.where, hint=_HINT)
        numbers = {}
        for model, value in values.items():
            try:
                numbers[str(model)] = float(value)
            except (TypeError, ValueError, RuntimeError):
                message = f"{self.path} returned {type(value).__name__} for {model}, which is no number"
                raise RadioplatError(message, where=self.where, hint=_HINT) from None
            if not math.isfinite(numbers[str(model)]):
                raise RadioplatError(f"{self.path} returned {value} for {model}: not finite", where=self.where)
        return numbers


class OwnMetrics(Metric):
    """Users' own metrics: a number for each model and metric, ``{model: {metric: value}}``."""

    name = row = "metrics"
    switch = "metrics"

    def __init__(self, setup: Setup) -> None:
        super().__init__(setup)
        self._metrics = own_metrics(setup.spec.evaluate)

    @classmethod
    def problems(cls, spec: Spec, inputs: Inputs) -> Iterator[Problem]:
        """Yield the reasons why the metric cannot be measured."""
        yield from problems_of(own_metrics, spec.evaluate)

    def learn(self, batch: EncodedBatch) -> None:
        """Add a batch of training images, for user classes that define ``learn``."""
        self._show("learn", batch)

    def update(self, batch: EncodedBatch) -> None:
        """Add a batch of held-out images."""
        self._show("update", batch)

    def result(self) -> dict[str, dict[str, float]]:
        """Compute the result of each model.

        Raises:
            RadioplatError: an own metric fails, or returns anything but finite numbers.
        """
        results: dict[str, dict[str, float]] = {}
        summaries = self.setup.held_out
        for metric in self._metrics:
            if metric.instance is not None:
                values = metric.call(metric.instance.result)
            else:
                names = self.setup.at_usual_size
                values = {name: metric.call(metric.code, summaries.of(name), summaries.labels) for name in names}
            for model, value in metric.numbers(values).items():
                results.setdefault(model, {})[metric.name] = value
        return results

    @classmethod
    def tables(cls, result: dict[str, dict[str, float]]) -> list[Table]:
        """Return the result as tables of the report."""
        names = list(dict.fromkeys(name for values in result.values() for name in values))
        rows = [[model, *(values.get(name) for name in names)] for model, values in result.items()]
        return [Table(["model", *names], rows, "Own metrics on held-out images", "See evaluate.metrics.")]

    @classmethod
    def figures(cls, result: dict[str, dict[str, float]]) -> dict[str, float]:
        """Return the figures for ``status.json``, by name."""
        return {f"metrics/{name}/{m}": value for m, values in result.items() for name, value in values.items()}

    @classmethod
    def as_json(cls, result: dict[str, dict[str, float]]) -> dict[str, Any]:
        """Return the result for ``results.json``, by key; empty without own metrics."""
        return {"metrics": result} if result else {}

    @classmethod
    def of_model(cls, result: dict[str, dict[str, float]], model: str) -> dict[str, float]:
        """Return the figures of one model for its row."""
        return result.get(model, {})

    @classmethod
    def objectives(cls, result: dict[str, dict[str, float]], model: str) -> dict[str, float]:
        """Return the values of one model for gates and objectives, by the name after the colon of the import path."""
        return cls.of_model(result, model)

    @classmethod
    def columns(cls, rows: Sequence[ModelRow]) -> dict[str, Column]:
        """Return columns of the table of models side by side: one for each own metric."""
        names = dict.fromkeys(name for row in rows for name in row.figures() if name.startswith("metrics/"))
        return {name.partition("/")[2]: Column(name, own=True) for name in names}

    def _show(self, method: str, batch: EncodedBatch) -> None:
        for metric in self._metrics:
            if (function := getattr(metric.instance, method, None)) is not None:
                metric.call(function, batch)


def own_metrics(config: EvaluateConfig) -> list[_OwnMetric]:
    """Import all of ``evaluate.metrics``, and make an object of each class.

    Raises:
        SpecError: with a problem for each that cannot be imported, or is no metric.
    """
    metrics, problems = [], list[Problem]()
    for i, path in enumerate(config.metrics):
        try:
            metrics.append(_imported(path, f"evaluate.metrics[{i}]"))
        except RadioplatError as error:
            problems += error.problems
    if problems:
        raise SpecError(*problems)
    return metrics


def _imported(path: str, where: str) -> _OwnMetric:
    code = import_object(path, where)
    metric = _OwnMetric(path, where, code)
    if not isinstance(code, type):
        if not callable(code):
            raise SpecError(f"{path} is neither a class nor a function", where=where, hint=_HINT)
        return metric
    if missing := [method for method in ("update", "result") if not callable(getattr(code, method, None))]:
        raise SpecError(f"{path} lacks {' and '.join(missing)}", where=where, hint=_HINT)
    return _OwnMetric(path, where, code, metric.call(code))
