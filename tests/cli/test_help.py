"""The help of commands without a spec names their options, and overrides of radioplat index are checked by name."""

from __future__ import annotations

import re
from dataclasses import asdict

import pytest

from radioplat.cli.main import main
from radioplat.data.packing.pack import PackOptions
from radioplat.quickstart.defaults import SPEC
from radioplat.spec.loading.load import load_spec


def shown(command: str, capsys: pytest.CaptureFixture[str]) -> str:
    with pytest.raises(SystemExit, match="0"):
        main([command, "--help"])
    return capsys.readouterr().out


def test_pack_lists_its_options_with_their_defaults(capsys):
    text = shown("pack", capsys)
    for name, value in asdict(PackOptions()).items():
        assert re.search(rf"^  {name}={str(value).lower()} +\w", text, re.MULTILINE)


def test_overrides_that_quickstart_names_are_fields_of_its_spec(capsys):
    text = shown("quickstart", capsys)
    named = re.findall(r"^  ((?!key=)[a-z_.]+=\w+) ", text, re.MULTILINE)
    spec = load_spec(SPEC, named)
    assert len(named) == 4 and "minutes" in text
    assert (spec.results_dir, spec.train.seed, spec.train.num_gpus) == ("DIR", 7, 1)
    assert f"default: {load_spec(SPEC).results_dir}" in text and f"default: {load_spec(SPEC).train.num_epochs}" in text


@pytest.mark.parametrize(
    ("override", "says"),
    [
        ("dataset.xyz=1", "error dataset.xyz: unknown field."),
        ("dataset.train_dataset.dedupe=true", "error dataset.train_dataset.dedupe: unknown field. Did you mean"),
        ("dedupe=true", "error dataset.train_dataset.dedupe: unknown field. Did you mean"),
        ("train.num_epochs=1", "error train.num_epochs: this field changes no index. Fields of dataset.train_dataset"),
    ],
)
def test_an_override_without_effect_on_an_index_is_named_as_it_was_written(override, says, photographs, capsys):
    assert main(["index", str(photographs), override]) == 1
    assert says in capsys.readouterr().err


def test_overrides_that_the_help_of_index_names_are_read(photographs, tmp_path, capsys):
    text = shown("index", capsys)
    named = re.findall(r"^  ([a-z_.]+=\d+) ", text, re.MULTILINE)
    assert [word.partition("=")[0] for word in named] == [
        "native_resolution_filter.min_short_side",
        "dataset.max_pixels",
    ]
    assert main(["index", str(photographs), "dataset.max_pixels=5000", f"index_dir={tmp_path}/1"]) == 0
    assert re.search(r"rejected by a filter +. +1 ", capsys.readouterr().out)
    assert main(["index", str(photographs), f"dataset.train_dataset.{named[0]}", f"index_dir={tmp_path}/2"]) == 0
    assert re.search(r"rejected by a filter +. +3 ", capsys.readouterr().out)


@pytest.fixture
def photographs(tmp_path):
    """Three small pictures."""
    import numpy as np
    from PIL import Image

    (folder := tmp_path / "images").mkdir()
    for i in range(3):
        noise = np.random.default_rng(i).integers(0, 255, (64, 50 + 25 * i, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f"{i}.png")
    return folder
