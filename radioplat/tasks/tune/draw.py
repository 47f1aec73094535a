"""Values of trials: drawn by number and seed, taken from a grid, or suggested by Optuna."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from radioplat.tasks.tune.domains import Domain
from radioplat.tasks.tune.space import Algorithm, TuneSpace

ValueOf = Callable[[str], Any]  # value of a field in the common spec of all trials


def draw_values(space: TuneSpace, number: int, value_of: ValueOf) -> dict[str, Any]:
    """Return the values of trial ``number`` by path; they depend only on the space, its seed and the number."""
    rng = np.random.Generator(np.random.Philox(key=space.search.seed, counter=[0, 0, 0, number]))
    if space.search.algorithm is Algorithm.grid:
        points = grid(space, value_of)
        fixed = points[number % len(points)]
        return _walk(space.domains, value_of, lambda d: fixed[d.path] if d.listed else d.draw(rng))
    return _walk(space.domains, value_of, lambda d: d.draw(rng))


def grid(space: TuneSpace, value_of: ValueOf) -> list[dict[str, Any]]:
    """Return all combinations of listed values, the last field fastest, without fields whose conditions are false."""
    points: list[dict[str, Any]] = [{}]
    for domain in space.domains:
        if domain.listed:
            points = [
                point | ({domain.path: value} if applies else {})
                for point in points
                for applies in [domain.applies(lambda p, point=point: point[p] if p in point else value_of(p))]
                for value in (domain.values if applies else (None,))
            ]
    return points


def define_by_run(space: TuneSpace, value_of: ValueOf) -> Callable[[Any], None]:
    """Return the space as Optuna's define-by-run function. Choices are JSON texts there; see :func:`decoded`."""

    def define(trial: Any) -> None:
        def suggest(domain: Domain) -> Any:
            values = domain.values
            if domain.listed:
                return json.loads(trial.suggest_categorical(domain.path, [json.dumps(v) for v in values]))
            if domain.kind == "randint":
                return trial.suggest_int(domain.path, *values)
            step = values[2] if domain.kind == "quniform" else None
            return trial.suggest_float(domain.path, *values[:2], step=step, log=domain.kind == "loguniform")

        _walk(space.domains, value_of, suggest)

    return define


def decoded(space: TuneSpace, config: dict[str, Any]) -> dict[str, Any]:
    """Return the values that Optuna suggested, by path."""
    listed = {domain.path for domain in space.domains if domain.listed}
    return {path: json.loads(value) if path in listed else value for path, value in config.items()}


def encoded(space: TuneSpace, values: dict[str, Any]) -> dict[str, Any]:
    """Return values in Optuna's form."""
    listed = {domain.path for domain in space.domains if domain.listed}
    return {path: json.dumps(value) if path in listed else value for path, value in values.items()}


def _walk(domains: list[Domain], value_of: ValueOf, choose: Callable[[Domain], Any]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for domain in domains:
        if domain.applies(lambda path: values[path] if path in values else value_of(path)):
            values[domain.path] = choose(domain)
    return values
