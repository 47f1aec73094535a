import json

import pytest

from radioplat.quickstart.stages import FILE, Stages
from radioplat.spec.loading.load import load_spec


def call(folder, *overrides, stop=None):
    """A call with three stages, each of which leaves a file; return those that ran."""
    ran = []

    def make(name):
        ran.append(name)
        if name == stop:
            raise InterruptedError
        (folder / name).touch()

    stages = Stages(load_spec({"results_dir": str(folder)}, overrides))
    for name in "abc":
        stages.run(name, [folder / name], lambda name=name: make(name))
    return "".join(ran)


def test_a_complete_stage_is_not_repeated(tmp_path, capsys):
    assert call(tmp_path) == "abc" and call(tmp_path) == ""
    assert capsys.readouterr().out.count("complete") == 3


def test_a_call_goes_on_at_the_stage_that_failed(tmp_path):
    with pytest.raises(InterruptedError):
        call(tmp_path, stop="b")
    assert call(tmp_path) == "bc"


def test_a_missing_file_repeats_its_stage_and_those_after_it(tmp_path):
    call(tmp_path)
    (tmp_path / "b").unlink()
    assert call(tmp_path) == "bc" and call(tmp_path) == ""


def test_another_spec_repeats_every_stage(tmp_path):
    call(tmp_path)
    assert call(tmp_path, "train.num_epochs=2") == "abc" and call(tmp_path) == "abc"


@pytest.mark.parametrize("damaged", ["", "[]", json.dumps({"made_by": 1})])
def test_a_damaged_record_repeats_every_stage(tmp_path, damaged):
    call(tmp_path)
    (tmp_path / FILE).write_text(damaged)
    assert call(tmp_path) == "abc"
