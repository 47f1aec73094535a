"""Costs of the teachers of a run: seconds, bytes, GPU-seconds and the price of 1,000 images."""

from __future__ import annotations

import dataclasses
import json
import operator
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from radioplat.tracking.results import write_atomic
from radioplat.tracking.table import Table

FILE = "teacher_cost.json"


@dataclass(frozen=True)
class TeacherCost:
    """Cost of one teacher in one run; costs of parts of a run, and of runs that share a pool, are added with ``+``.

    Attributes:
        images: requested images, including those from the feature cache, without padding.
        cached: images from the feature cache.
        bytes: of the features that the workers received, two for each number, from the teacher or the cache.
        seconds: wall time of its forward passes; that of a pass for several runs is divided by rows.
        gpu_seconds, cpu_seconds: ``seconds`` times the GPUs and CPUs of one replica.
        held_seconds: number of replicas times the time for which the run had them, used or idle.
    """

    images: int = 0
    cached: int = 0
    bytes: int = 0
    seconds: float = 0.0
    gpu_seconds: float = 0.0
    cpu_seconds: float = 0.0
    held_seconds: float = 0.0

    def __add__(self, other: TeacherCost) -> TeacherCost:
        return TeacherCost(*map(operator.add, _numbers(self), _numbers(other)))

    @property
    def busy(self) -> float | None:
        """Share of ``held_seconds`` in which replicas computed for this run; None if that is 0."""
        return self.seconds / self.held_seconds if self.held_seconds else None

    def per_image(self, amount: float | None) -> float | None:
        """Return ``amount`` per image; None if it is unknown or there were no images."""
        return None if amount is None or not self.images else amount / self.images


_NAMES = [f.name for f in dataclasses.fields(TeacherCost)]
_numbers = operator.attrgetter(*_NAMES)  # each step adds costs, and `dataclasses.astuple` takes 50 times as long


@dataclass(frozen=True)
class Prices:
    """Prices of an hour of one GPU and of one CPU, in the user's currency; None: unknown."""

    gpu_hour: float | None = None
    cpu_hour: float | None = None

    def of(self, cost: TeacherCost) -> float | None:
        """Return the price of a teacher's work; None if the price of its hardware is unknown.

        Without ``cpu_hour`` the price of a GPU includes its CPUs.
        """
        unknown = self.gpu_hour is None if cost.gpu_seconds else self.cpu_hour is None
        if unknown:
            return None
        return (cost.gpu_seconds * (self.gpu_hour or 0.0) + cost.cpu_seconds * (self.cpu_hour or 0.0)) / 3600


@dataclass(frozen=True)
class TeacherCosts:
    """The costs of all teachers of a run, from its first start on, by name."""

    teachers: dict[str, TeacherCost] = field(default_factory=dict)
    prices: Prices = Prices()

    @classmethod
    def total(cls, several: Sequence[TeacherCosts]) -> TeacherCosts:
        """Return the sum of the costs that several students pay, at the first one's prices."""
        teachers: dict[str, TeacherCost] = {}
        for costs in several:
            for name, cost in costs.teachers.items():
                teachers[name] = teachers.get(name, TeacherCost()) + cost
        return cls(teachers, several[0].prices if several else Prices())

    def figures(self, teacher: str) -> dict[str, float]:
        """Return the metrics of a teacher by name, without unknown ones."""
        cost = self.teachers[teacher]

        def per_1000(amount: float | None) -> float | None:
            one = cost.per_image(amount)
            return None if one is None else 1000 * one

        figures = {
            "seconds_per_1000_images": per_1000(cost.seconds),
            "bytes_per_image": cost.per_image(cost.bytes),
            "gpu_seconds_per_1000_images": per_1000(cost.gpu_seconds),
            "price_per_1000_images": per_1000(self.prices.of(cost)),
            "busy": cost.busy,
        }
        return {name: value for name, value in figures.items() if value is not None}

    def kpi(self) -> dict[str, float]:
        """Return the metrics of all teachers as ``cost/<teacher>/<name>``."""
        return {f"cost/{teacher}/{name}": v for teacher in self.teachers for name, v in self.figures(teacher).items()}

    def table(self) -> Table:
        """Return a table with a row for each teacher; columns of cached images and prices only if there are any."""
        with_cache = any(cost.cached for cost in self.teachers.values())
        with_price = any("price_per_1000_images" in self.figures(teacher) for teacher in self.teachers)
        columns = ["teacher", "images", *(["from the cache"] if with_cache else []), "s / 1000", "MB / 1000"]
        columns += ["GPU-s / 1000", *(["price / 1000"] if with_price else []), "busy"]
        rows = []
        for teacher, cost in self.teachers.items():
            figures = self.figures(teacher)
            size = figures.get("bytes_per_image")
            row = [teacher, cost.images, *([cost.cached] if with_cache else []), figures.get("seconds_per_1000_images")]
            row += [None if size is None else size / 1000, figures.get("gpu_seconds_per_1000_images")]
            row += [figures.get("price_per_1000_images")] if with_price else []
            rows.append([*row, f"{cost.busy:.0%}" if cost.busy is not None else None])
        note = (
            "For 1,000 requested images: the seconds of the teacher's forward passes, and these times the GPUs of a "
            "replica. Busy: the share of its replicas' time in which they computed for this run."
        )
        return Table(columns, rows, title="What teachers cost", note=note)

    def write(self, folder: Path) -> Path:
        """Write ``teacher_cost.json``: counts, figures and prices."""
        teachers = {name: dataclasses.asdict(cost) | self.figures(name) for name, cost in self.teachers.items()}
        prices = {"gpu_hour_price": self.prices.gpu_hour, "cpu_hour_price": self.prices.cpu_hour}
        return write_atomic(folder / FILE, json.dumps({**prices, "teachers": teachers}, indent=1) + "\n")

    @staticmethod
    def read(folder: Path) -> TeacherCosts | None:
        """Read what :meth:`write` of this version wrote into ``folder``; None if there is no such file."""
        try:
            saved = json.loads((folder / FILE).read_text(encoding="utf-8"))
            teachers = {name: TeacherCost(*(cost[n] for n in _NAMES)) for name, cost in saved["teachers"].items()}
            return TeacherCosts(teachers, Prices(saved["gpu_hour_price"], saved["cpu_hour_price"]))
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None
