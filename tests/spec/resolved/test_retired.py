"""Retired fields are accepted for a release, and the user hears that they do nothing."""

from __future__ import annotations

import operator

import pytest

from radioplat.spec.loading.load import load_spec
from radioplat.spec.resolved.retired import RETIRED, retired_field_notes
from radioplat.spec.schema.root import Spec


def test_a_retired_field_is_accepted_with_a_note():
    (note,) = retired_field_notes(load_spec({"cluster": {"spare_workers": True}}))
    assert "cluster.spare_workers has no effect" in note and "Remove it" in note


def test_defaults_need_no_note():
    assert not list(retired_field_notes(load_spec({"cluster": {"spare_workers": False}})))


@pytest.mark.parametrize("path", RETIRED)
def test_every_retired_field_is_still_a_field_of_the_spec(path):
    operator.attrgetter(path)(Spec())
