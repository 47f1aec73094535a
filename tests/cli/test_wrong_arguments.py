"""A mistyped name is reported before torch or Ray is imported, whatever the command, with the nearest name."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest

from radioplat.cli.main import main
from radioplat.cli.parser import GROUPS, TASKS, Command, add_spec

# In one process, one command after another: the first that imports one of them is the one that is named.
RUN = """
import json, sys
from radioplat.cli.main import main
for words in json.loads(sys.argv[1]):
    code = main(words)
    heavy = {"torch", "ray", "pyarrow"} & sys.modules.keys()
    assert code == 1 and not heavy, (words, code, heavy)
"""
COMMANDS: dict[tuple[str, ...], Command] = {(name,): command for name, command in TASKS.items()}
COMMANDS |= {(name, verb): command for name, (_, verbs) in GROUPS.items() for verb, command in verbs.items()}
OF_A_SPEC = [list(words) for words, command in COMMANDS.items() if command.arguments is add_spec]
OTHERS = [["tune", "--space", "x"], ["plan"], ["show", "data", "2"]]
OF_A_PATH = [
    *(["diagnose"], ["ledger"], ["index"], ["migrate", "run"], ["migrate", "tao"], ["migrate", "lightly"]),
    *(["weights", "inspect"], ["weights", "convert"], ["lint"], ["profile"]),
]


def test_no_command_imports_torch_or_ray_before_it_has_read_its_arguments(tmp_path):
    missing = str(tmp_path / "no")
    (wrong := tmp_path / "wrong.yaml").write_text("train: {num_epoch: 3}")
    words = [[*command, "-e", spec] for command in OF_A_SPEC + OTHERS for spec in (f"{missing}.yaml", str(wrong))]
    words += [[*command, missing] for command in OF_A_PATH] + [["pack", missing, missing]]
    assert len(words) > 40
    done = subprocess.run([sys.executable, "-c", RUN, json.dumps(words)], capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr[-1000:]
    assert done.stderr.count("Did you mean train.num_epochs?") == len(OF_A_SPEC + OTHERS)
    assert done.stderr.count("it does not exist") == 7 and "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("words", "near"), [(["distil", "-e", "x"], "distill"), (["plan", "trian", "-e", "x"], "train")]
)
def test_the_nearest_word_is_proposed(words, near, capsys):
    with pytest.raises(SystemExit, match="2"):
        main(words)
    assert f"Did you mean '{near}'?" in capsys.readouterr().err
