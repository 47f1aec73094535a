"""What a spec leaves open is the same when it is written into its fields, and a run that has begun keeps it."""

from __future__ import annotations

import itertools
from dataclasses import asdict, is_dataclass
from enum import Enum

import pytest
import yaml

from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.default_losses import kept_losses, open_losses
from radioplat.spec.resolved.teacher import resolve_teachers
from radioplat.spec.schema.root import Spec

T = "distill.teacher[0]"
CHOICES = (
    ("", f"{T}.mode=combo", f"{T}.mode=spatial", f"{T}.mode=summary", f"{T}.mode=logits", "dataset.num_classes=3"),
    ("", f"{T}.loss_type=MSE", "distill.loss_type=CS", f"{T}.spatial_loss_type=gram"),
    ("", f"{T}.summary_loss_type=angle"),
    ("", f"{T}.extra_losses=[{{type: rkd_distance, kind: summary, weight: 0.5}}]"),
    ("", "dataset.batch_size=1", f"{T}.summary_loss_weight=3"),
)
EACH = [list(filter(None, choice)) for choice in itertools.product(*CHOICES)]
STRIDE = 11  # shares no factor with the lengths of CHOICES: every value is met
EACH = [
    each if number % STRIDE == 0 else pytest.param(each, marks=pytest.mark.proof) for number, each in enumerate(EACH)
]


def spec_of(*overrides: str) -> Spec:
    return load_spec({"distill": {"teacher": [{"name": "t"}]}}, overrides)


def plain(value):
    if isinstance(value, list):
        return [plain(each) for each in value]
    if is_dataclass(value):
        return {name: plain(each) for name, each in asdict(value).items()}
    return value.value if isinstance(value, Enum) else value


def with_fields(spec: Spec, fields) -> Spec:
    return load_spec(spec, [f"{name}={yaml.safe_dump(plain(v), default_flow_style=True)}" for name, v in fields])


def trained(spec: Spec) -> set[tuple]:
    return {(term.name, term.kind, term.loss, term.weight) for term in resolve_teachers(spec)[0].terms}


@pytest.mark.parametrize("overrides", EACH, ids=" ".join)
def test_named_losses_are_those_that_were_open(overrides):
    spec = spec_of(*overrides)
    settled = with_fields(spec, open_losses(spec))
    assert trained(settled) == trained(spec)
    assert list(open_losses(settled)) == []
    # The same spec, started again: also if the default is another one by then.
    assert trained(with_fields(spec, kept_losses(spec, settled))) == trained(spec)
    assert trained(with_fields(settled, kept_losses(settled, settled))) == trained(spec)


def test_the_mode_of_all_teachers_is_kept_as_it_was_written_to_each():
    spec = spec_of("distill.mode=combo")
    settled = with_fields(spec, open_losses(spec))
    assert (f"{T}.mode", settled.distill.teacher[0].mode) in list(kept_losses(spec, settled))


def test_a_run_that_began_with_other_defaults_keeps_them():
    earlier = spec_of("distill.loss_type=KL", f"{T}.summary_loss_type=CE")  # as written by earlier versions
    spec = spec_of()
    assert trained(with_fields(spec, kept_losses(spec, earlier))) == trained(earlier)
    spec = spec_of(f"{T}.mode=combo", f"{T}.loss_type=MSE")  # what the spec says now stands
    assert {(name, loss) for name, _, loss, _ in trained(with_fields(spec, kept_losses(spec, earlier)))} == {
        ("summary", "CE"),
        ("spatial", "MSE"),
    }


def test_what_is_named_is_not_open():
    assert list(open_losses(spec_of(f"{T}.loss_type=MSE"))) == []
    fields = dict(open_losses(spec_of()))
    assert {name: plain(value) for name, value in fields.items()} == {
        f"{T}.mode": "combo",
        f"{T}.summary_loss_type": "balanced",
        f"{T}.loss_type": "BALANCED",
        f"{T}.extra_losses": [{"type": "similarity", "kind": k, "weight": 1.0} for k in ("summary", "spatial")],
    }
