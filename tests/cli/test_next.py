"""What a user who has read nothing gets: help without a command, and after each step the command that follows."""

from __future__ import annotations

import argparse

import pytest

from radioplat.cli.arguments import say_next_of_run
from radioplat.cli.main import main
from radioplat.spec.loading.load import load_spec


def test_without_a_command_there_is_help(capsys):
    assert main([]) == 0
    assert "radioplat init" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("overrides", "task"), [([], "export"), (["dataset.val_dataset.images_dir=my photos"], "evaluate")]
)
def test_the_next_command_has_the_same_spec_and_overrides(overrides, task, capsys):
    say_next_of_run(argparse.Namespace(spec="s.yaml", overrides=overrides), load_spec(None, overrides))
    quoted = "".join(f" '{each}'" for each in overrides)
    assert capsys.readouterr().out == f"next: radioplat {task} -e s.yaml{quoted}\n"
