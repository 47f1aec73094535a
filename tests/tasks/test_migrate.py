"""``radioplat migrate tao``."""

from __future__ import annotations

import pytest

from radioplat.cli import main as cli
from radioplat.spec.loading.load import load_spec

TEXT = """# a spec
---
model_name: radio  # as TAO has it
distill: {loss_type: balanced, teacher: {backbone: {type: resnet_34}}}
"""


def test_a_copy_with_one_more_line(tmp_path, capfd):
    (tmp_path / "s.yaml").write_text(TEXT)
    assert cli.main(["migrate", "tao", str(tmp_path / "s.yaml")]) == 0
    written = tmp_path / "s_radioplat.yaml"
    before, after = TEXT.splitlines(), written.read_text().splitlines()
    assert [line for line in after if line not in before] == ["compat: tao"] and len(after) == len(before) + 1
    assert load_spec(written).distill.mean_over_teachers and "model_name has no effect" in capfd.readouterr().out


@pytest.mark.parametrize(
    ("text", "name", "words"),
    [
        (f"compat: tao\n{TEXT[TEXT.index('model') :]}", "new.yaml", "already"),
        (TEXT, "there.yaml", "exists"),
        ("trian: {}", "new.yaml", "unknown field"),
        ("{model_name: radio}", "new.yaml", "Add compat: tao"),
    ],
)
def test_nothing_is_written_otherwise(text, name, words, tmp_path, capfd):
    (tmp_path / "s.yaml").write_text(text)
    (tmp_path / "there.yaml").write_text("mine")
    assert cli.main(["migrate", "tao", str(tmp_path / "s.yaml"), str(tmp_path / name)]) == 1
    assert words in capfd.readouterr().err and not (tmp_path / "new.yaml").exists()
    assert (tmp_path / "there.yaml").read_text() == "mine"
