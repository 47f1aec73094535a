"""Read and write files of measured target statistics, so that runs of a sweep measure them only once.

The file (``distill.target_norm.path``, safetensors) contains float64 sums of each teacher's summary and map: the number
of rows ``count``, ``total`` ``[D]`` and ``outer`` ``[D, D]``. Every ``type`` of transform can be computed from them,
with the same result in any run.
"""

from __future__ import annotations

import json
from pathlib import Path

import safetensors
from safetensors.torch import load_file, save_file

from radioplat import __version__
from radioplat.common import collectives
from radioplat.common.atomic_files import written_aside
from radioplat.errors import Problem, SpecError
from radioplat.losses.target_transforms.moments import Moments
from radioplat.spec.resolved.teacher import ResolvedTeacher
from radioplat.teachers.cache.key import weights_hash
from radioplat.tracking.record_versions import newer_record
from radioplat.training.targets.transforms import Key, normed

WHERE = "distill.target_norm.path"
_KEY, _VERSION = "radioplat.target_norm", 1
_PARTS = ("count", "total", "outer")
_HINT = "Give the path of a new file, or remove this one: it is then written anew."


def write_moments(path: str | Path, teachers: list[ResolvedTeacher], measured: dict[Key, Moments]) -> None:
    """Write the ``measured`` moments of ``teachers`` to ``path``, atomically.

    Raises:
        SpecError: the file cannot be written.
        WeightsError: a teacher's weights cannot be read.
    """
    tensors = {
        f"{name}.{kind}.{part}": tensor.contiguous()
        for (name, kind), moments in measured.items()
        for part, tensor in zip(_PARTS, moments.parts(), strict=True)
    }
    names = {name for name, _ in measured}
    about = {
        "version": _VERSION,
        "radioplat": __version__,
        "weights": {t.name: weights_hash(t) for t in teachers if t.name in names},
    }
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        with written_aside(path) as aside:
            save_file(tensors, aside, {_KEY: json.dumps(about), "format": "pt"})
    except OSError as error:
        raise SpecError(f"{path} cannot be written: {error.strerror}", where=WHERE) from None


def problems(path: str | Path, teachers: list[ResolvedTeacher], widths: dict[Key, int]) -> list[Problem]:
    """Return why the existing file at ``path`` does not fit these teachers; [] if it does.

    Args:
        widths: feature dimensions of each teacher's summary and map.

    Raises:
        WeightsError: a teacher's weights cannot be read.
    """
    try:
        with safetensors.safe_open(path, "pt") as opened:
            about = json.loads((opened.metadata() or {})[_KEY])
            shapes = {name: list(opened.get_slice(name).get_shape()) for name in opened.keys()}
        weights = dict(about["weights"])
    except (safetensors.SafetensorError, OSError, KeyError, ValueError, TypeError):
        return [Problem(f"{path} holds no statistics of teachers", WHERE, _HINT)]
    version = about.get("version")
    if isinstance(version, int) and version > _VERSION:
        return newer_record(f"{WHERE}: {path}", "its content", version, _VERSION, about.get("radioplat", "")).problems
    if version != _VERSION:
        return [Problem(f"{path} has version {version}, radioplat {__version__} reads {_VERSION}", WHERE, _HINT)]
    result = []
    for teacher in teachers:
        kinds = [kind for name, kind in normed([teacher]) if name == teacher.name]
        absent = [kind for kind in kinds if f"{teacher.name}.{kind}.outer" not in shapes]
        other = [
            f"{kind} is {shapes[f'{teacher.name}.{kind}.total'][0]} wide there and {widths[teacher.name, kind]} here"
            for kind in kinds
            if kind not in absent and shapes[f"{teacher.name}.{kind}.outer"] != [widths[teacher.name, kind]] * 2
        ]
        if absent:
            result.append(Problem(f"{path} says nothing of the {absent[0]} of teacher {teacher.name}", WHERE, _HINT))
        elif other:
            result.append(Problem(f"{path} was measured of another teacher {teacher.name}: {other[0]}", WHERE, _HINT))
        elif kinds and weights.get(teacher.name) != weights_hash(teacher):
            message = f"{path} was measured with other weights of teacher {teacher.name}"
            result.append(Problem(message, WHERE, _HINT))
    return result


def share_moments(path: str | None, teachers: list[ResolvedTeacher], measured: dict[Key, Moments]) -> None:
    """Write the ``measured`` moments of all ranks to ``path``, if it is set; every rank must call it, rank 0 writes.

    Raises:
        SpecError, WeightsError: on every rank, as raised by :func:`write_moments`.
    """
    if path is not None:
        collectives.from_first(lambda: write_moments(path, teachers, measured))


def shared_moments(
    path: str | None, teachers: list[ResolvedTeacher], widths: dict[Key, int]
) -> dict[Key, Moments] | None:
    """Read the moments of ``teachers`` from ``path``; None without a path or a file. Every rank must call it.

    Raises:
        SpecError, WeightsError: on every rank, if the file does not fit the teachers; see :func:`problems`.
    """
    if path is None:
        return None
    return collectives.from_first(lambda: _read(path, teachers, widths) if Path(path).exists() else None)


def _read(path: str | Path, teachers: list[ResolvedTeacher], widths: dict[Key, int]) -> dict[Key, Moments]:
    if wrong := problems(path, teachers, widths):
        raise SpecError(*wrong)
    tensors = load_file(path)
    keys = normed(teachers)
    return {(name, kind): Moments(*(tensors[f"{name}.{kind}.{part}"] for part in _PARTS)) for name, kind in keys}
