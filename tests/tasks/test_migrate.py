"""``radioplat migrate tao``."""

from __future__ import annotations

import pytest
import yaml

from radioplat.cli import main as cli
from radioplat.spec.loading.load import load_spec

TEXT = """# a spec
---
model_name: radio  # as TAO has it
distill: {loss_type: balanced, teacher: {backbone: {type: resnet_34}}}
"""


def test_a_copy_with_one_more_line(tmp_path, capfd):
    (tmp_path / "s.yaml").write_text(TEXT)
    written = tmp_path / "new.yaml"
    assert cli.main(["migrate", "tao", str(tmp_path / "s.yaml"), "--out", str(written)]) == 0
    before, after = TEXT.splitlines(), written.read_text().splitlines()
    assert [line for line in after if line not in before] == ["compat: tao"] and len(after) == len(before) + 1
    assert load_spec(written).distill.mean_over_teachers
    assert "model_name: the name of a run is wandb.name" in capfd.readouterr().err
    assert cli.main(["migrate", "tao", str(tmp_path / "s.yaml")]) == 0
    assert capfd.readouterr().out == written.read_text(), "without --out it is printed, and the notes are not in it"


def test_an_unknown_field_is_left_out_and_named(tmp_path, capfd):
    text = "train: {num_epochs: 7, colour: red}\ndistill: {teacher: {backbone: {type: resnet_34}, tint: 3}}\n"
    text += "sound: {a: 1}\n"
    (tmp_path / "s.yaml").write_text(text)
    assert cli.main(["migrate", "tao", str(tmp_path / "s.yaml")]) == 0
    printed = capfd.readouterr()
    tree = yaml.safe_load(printed.out)
    assert tree == {
        "compat": "tao",
        "train": {"num_epochs": 7},
        "distill": {"teacher": {"backbone": {"type": "resnet_34"}}},
    }
    assert all(
        word in printed.err for word in ("train.colour", "'red'", "distill.teacher[0].tint", "sound", "{'a': 1}")
    )


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        (f"compat: tao\n{TEXT[TEXT.index('model') :]}", "new.yaml", "already"),
        (TEXT, "there.yaml", "exists"),
        ("train: {num_epochs: 0}", "new.yaml", "num_epochs"),
        ("train: [", "new.yaml", "not valid YAML"),
        ("{model_name: radio}", "new.yaml", "Add compat: tao"),
    ],
)
def test_nothing_is_written_otherwise(text, name, words, tmp_path, capfd):
    (tmp_path / "s.yaml").write_text(text)
    (tmp_path / "there.yaml").write_text("mine")
    assert cli.main(["migrate", "tao", str(tmp_path / "s.yaml"), "--out", str(tmp_path / name)]) == 1
    assert words in capfd.readouterr().err and not (tmp_path / "new.yaml").exists()
    assert (tmp_path / "there.yaml").read_text() == "mine"
