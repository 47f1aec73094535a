"""Values for trials: drawn by number and seed, out of a grid, or asked of Optuna."""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from radioplat.tasks.tune.domains import Domain
from radioplat.tasks.tune.space import Algorithm, TuneSpace

ValueOf = Callable[[str], Any]  # of a field in the spec that all trials have in common


def drawn(space: TuneSpace, number: int, value_of: ValueOf) -> dict[str, Any]:
    """The values of trial ``number`` by path: a function of the space, its seed and the number alone."""
    rng = np.random.Generator(np.random.Philox(key=space.search.seed, counter=[0, 0, 0, number]))
    if space.search.algorithm is Algorithm.grid:
        points = grid(space, value_of)
        fixed = points[number % len(points)]
        return _walk(space.domains, value_of, lambda d: fixed[d.path] if d.listed else d.draw(rng))
    return _walk(space.domains, value_of, lambda d: d.draw(rng))


def grid(space: TuneSpace, value_of: ValueOf) -> list[dict[str, Any]]:
    """Every combination of the values that are listed, the last field fastest; conditions leave out what is moot."""
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
    """The space as Optuna asks for it. What is listed are JSON texts there; see :func:`decoded`."""

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
    """What Optuna chose, by path."""
    listed = {domain.path for domain in space.domains if domain.listed}
    return {path: json.loads(value) if path in listed else value for path, value in config.items()}


def encoded(space: TuneSpace, values: dict[str, Any]) -> dict[str, Any]:
    """Values as Optuna holds them."""
    listed = {domain.path for domain in space.domains if domain.listed}
    return {path: json.dumps(value) if path in listed else value for path, value in values.items()}


def _walk(domains: list[Domain], value_of: ValueOf, choose: Callable[[Domain], Any]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for domain in domains:
        if domain.applies(lambda path: found[path] if path in found else value_of(path)):
            found[domain.path] = choose(domain)
    return found
