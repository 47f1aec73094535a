"""Numbers out of their ranges: every number of the spec has a range, and each is refused by its path."""

from __future__ import annotations

import dataclasses
import math
import typing
from collections.abc import Iterator
from enum import Enum
from typing import Any

import pytest

from radioplat.cli.main import main
from radioplat.errors import SpecError
from radioplat.spec.loading.fields import strip_optional
from radioplat.spec.loading.load import load_spec
from radioplat.spec.ranges import range_of, range_problems
from radioplat.spec.schema.root import Spec

# The only fields that may be below 0, and why.
NEGATIVE = {
    "dataset.augmentation.mean[0]": "of an image that is shifted already",
    "dataset.augmentation.random_rotate.angle_list[0]": "the other way around",
    "distill.teacher[0].norm_mean[0]": "as dataset.augmentation.mean",
    "model.backbone.student_norm_mean[0]": "as dataset.augmentation.mean",
    "distill.teacher[0].model.backbone.student_norm_mean[0]": "as dataset.augmentation.mean",
    "export.batch_size": "-1: dynamic",
    "gen_trt_engine.batch_size": "-1: as tensorrt.max_batch_size says",
    "train.max_failures": "-1: as often as it takes",
}


def filled(kind: type) -> Any:
    """The defaults, with one entry in each list and mapping of sections or numbers."""
    made = kind()
    hints = typing.get_type_hints(kind)
    for field in dataclasses.fields(kind):
        bare = strip_optional(hints[field.name])
        origin, args = typing.get_origin(bare), typing.get_args(bare)
        inner = args[-1] if origin in (list, dict) else bare
        if dataclasses.is_dataclass(inner):
            entry = filled(inner)
        elif inner in (int, float) and (origin or getattr(made, field.name) is None):
            limits = range_of(field)
            entry = next(inner(n) for n in (1, 0.5, 2) if limits is None or not limits.fault(inner(n)))
        else:
            continue
        setattr(made, field.name, [entry] if origin is list else {"one": entry} if origin is dict else entry)
    return made


def numbers(value: Any, path: str = "") -> Iterator[tuple[str, Any, Any, type, dataclasses.Field]]:
    """Path, holder, key or index or name, kind and field of every number below a filled ``value``."""
    hints = typing.get_type_hints(type(value))
    for field in dataclasses.fields(value):
        held, at = getattr(value, field.name), f"{path}.{field.name}" if path else field.name
        kind = strip_optional(hints[field.name])
        places = [(at, value, field.name, held)]
        if isinstance(held, list):
            places = [(f"{at}[{i}]", held, i, inner) for i, inner in enumerate(held)]
        elif isinstance(held, dict):
            places = [(f"{at}.{key}", held, key, inner) for key, inner in held.items()]
        for where, holder, key, inner in places:
            if dataclasses.is_dataclass(inner):
                yield from numbers(inner, where)
            elif isinstance(inner, (int, float)) and not isinstance(inner, (bool, Enum)):
                args = typing.get_args(kind)
                yield where, holder, key, args[-1] if args else kind, field


def put(holder: Any, key: Any, value: float) -> None:
    if isinstance(holder, (list, dict)):
        holder[key] = value
    else:
        setattr(holder, key, value)


SPEC = filled(Spec)
FOUND = [number for number in numbers(SPEC) if number[3] is not Any]  # teachers.<name>.replicas has checks of its own


def test_every_number_has_a_range():
    assert len(FOUND) > 200
    assert {where for where, *_, field in FOUND if range_of(field) is None} == set()


BAD = {
    "nan": math.nan, "inf": math.inf, "-inf": -math.inf, "2**70": 2**70, "1e308": 1e308, "-1": -1, "huge": 10**5000
}  # fmt: skip


@pytest.mark.parametrize("bad", BAD.values(), ids=BAD)
def test_each_is_refused_by_its_path(bad):
    allowed = set()
    for where, holder, key, kind, _ in FOUND:
        if kind is int and isinstance(bad, float):
            continue  # omegaconf refuses these by the field's kind
        before = holder[key] if isinstance(holder, (list, dict)) else getattr(holder, key)
        put(holder, key, bad if kind is int or bad == 10**5000 else float(bad))
        said = [problem.where for problem in range_problems(SPEC)]
        put(holder, key, before)
        assert said == [where] or not said
        allowed |= set() if said else {(where, kind)}
    if bad == -1:
        assert {where for where, _ in allowed} == set(NEGATIVE)
    elif bad == 2**70:  # as a float it is a number like another
        assert all(kind is float for _, kind in allowed)
    else:
        assert not allowed


def test_the_defaults_are_in_their_ranges():
    assert list(range_problems(Spec())) == []
    assert list(range_problems(SPEC)) == []


@pytest.mark.parametrize(
    ("override", "where", "words"),
    [
        ("train.seed=18446744073709551616", "train.seed", "at most"),
        ("train.seed=-1", "train.seed", "at least 0"),
        pytest.param(f"train.seed={'9' * 5000}", "train.seed", "not valid YAML", id="5000 digits"),
        pytest.param(f"train.optim.lr={'9' * 400}", "train.optim.lr", "too large", id="400 digits"),
        (f"train.seed={10**40}", "train.seed", "not 1e40"),
        ("dataset.train_dataset.seed=18446744073709551616", "dataset.train_dataset.seed", "at most"),
        ("dataset.train_dataset.tar_data_sources=[{root_dir: x, steps_per_epoch: -1}]",
         "dataset.train_dataset.tar_data_sources[0].steps_per_epoch", "at least 1"),
        ("dataset.train_dataset.tar_data_sources=[{root_dir: x, steps_per_epoch: 0}]",
         "dataset.train_dataset.tar_data_sources[0].steps_per_epoch", "at least 1"),
        ("distill.loss_lambda=.nan", "distill.loss_lambda", "finite"),
        ("distill.teacher=[{loss_lambda: .inf}]", "distill.teacher[0].loss_lambda", "finite"),
        ("distill.teacher=[{spatial_num_inner: 1000000}]", "distill.teacher[0].spatial_num_inner", "at most 100"),
        ("dataset.augmentation.random_flip.hflip_probability=.nan",
         "dataset.augmentation.random_flip.hflip_probability", "finite"),
        ("train.optim.weight_decay=1e308", "train.optim.weight_decay", "at most"),
        ("train.optim.policy_params.min_lr=.nan", "train.optim.policy_params.min_lr", "finite"),
        ("model.backbone.kwargs.mlp_ratio=.inf", "model.backbone.kwargs.mlp_ratio", "finite"),
        ("train.validation_interval=0", "train.validation_interval", "at least 1"),
        ("train.spike.window=1", "train.spike.window", "at least 2 and at most 1000"),
        ("train.hang_timeout_s=1e12", "train.hang_timeout_s", "at most 1e+09"),
        ("distill.mesa.start_step=-1", "distill.mesa.start_step", "at least 0"),
        ("distill.target_norm.fit_batches=0", "distill.target_norm.fit_batches", "at least 1"),
        ("train_upsampler.max_shift=0.6", "train_upsampler.max_shift", "at most 0.5"),
        ("quantize.percentile=30", "quantize.percentile", "at least 50 and at most 100"),
        ("prune.amount=1", "prune.amount", "at least 0 and below 1"),
        ("compress.gates.min_kept=1.5", "compress.gates.min_kept", "above 0 and at most 1"),
        ("compress.gates.retries=-1", "compress.gates.retries", "at least 0"),
        ("teachers.t.resources.t=0", "teachers.t.resources.t", "above 0"),
        ("distill.teacher=[{summary_token_idx: -1}]", "distill.teacher[0].summary_token_idx", "at least 0"),
        ("distill.bindings=[{teacher_module_name: a, student_module_name: b, criterion: MSE, weight: -1}]",
         "distill.bindings[0].weight", "at least 0"),
        ("low_rank.ratio=1", "low_rank.ratio", "above 0 and below 1"),
        ("evaluate.segmentation.num_classes=256", "evaluate.segmentation.num_classes", "at most 255"),
        ("evaluate.segmentation.class_values=[0, 256]", "evaluate.segmentation.class_values[1]", "at most 255"),
        ("evaluate.segmentation.light.lr=0", "evaluate.segmentation.light.lr", "above 0"),
        ("evaluate.change.max_images=1", "evaluate.change.max_images", "at least 2"),
        ("gen_trt_engine.tensorrt.workspace_size=0", "gen_trt_engine.tensorrt.workspace_size", "at least 1"),
        ("gen_trt_engine.tensorrt.min_batch_size=0", "gen_trt_engine.tensorrt.min_batch_size", "at least 1"),
        ("evaluate.cka_rows=3", "evaluate.cka_rows", "at least 4 or 0"),
        ("teachers.t.timeout_s=0", "teachers.t.timeout_s", "above 0"),
        ("cluster.worker_resources.node=-1", "cluster.worker_resources.node", "above 0"),
    ],
)  # fmt: skip
def test_a_spec_is_refused_when_it_is_loaded(override, where, words):
    with pytest.raises(SpecError) as caught:
        load_spec(None, [override])
    (problem,) = caught.value.problems
    assert problem.where == where and words in problem.message


def test_plan_names_the_file_and_the_field(tmp_path, capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "400")  # the path of a test folder is long, and wrapped inside words
    (tmp_path / "spec.yaml").write_text("train: {seed: 18446744073709551616, optim: {weight_decay: .inf}}\n")
    assert main(["plan", "-e", str(tmp_path / "spec.yaml")]) == 1
    said = " ".join(capsys.readouterr().err.split())
    assert "spec.yaml: train.seed: must be at most 9223372036854775807, not 18446744073709551616" in said
    assert "train.optim.weight_decay: must be a finite number, not inf" in said


def test_ranges_are_kept_by_a_round_trip():
    assert load_spec(load_spec(None, ["train.seed=9223372036854775807"])).train.seed == 2**63 - 1


def test_a_file_with_a_number_of_thousands_of_digits(tmp_path):
    (tmp_path / "spec.yaml").write_text(f"train: {{seed: {'9' * 5000}}}")
    with pytest.raises(SpecError, match="spec.yaml: not valid YAML"):
        load_spec(tmp_path / "spec.yaml")
