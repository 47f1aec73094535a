"""What all tests of the spec's rules ask."""

from __future__ import annotations

import dataclasses

import pytest

from radioplat.errors import Problem, SpecError
from radioplat.spec.checks.tasks.training_run import check
from radioplat.spec.loading.load import load_spec


@pytest.fixture
def problems_of():
    """problems_of(source, overrides, task) -> what loading a spec says of it, else its check; without the file's name.

    A number out of its range is found when the spec is loaded, what contradicts another field by the check.
    """

    def ask(source, overrides=(), task="distill", check=check) -> list[Problem]:
        try:
            return list(check(load_spec(source, overrides), task))
        except SpecError as error:
            return [dataclasses.replace(p, where=p.where.removeprefix(f"{source}: ")) for p in error.problems]

    return ask
