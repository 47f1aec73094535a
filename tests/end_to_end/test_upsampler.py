"""An upsampler is trained on real photographs, and its teacher then teaches at a finer grid."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from safetensors.torch import load_file

from radioplat.cli import main as cli
from radioplat.design.models import design_models
from radioplat.errors import RadioplatError, SpecError, WeightsError
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.train_upsampler.train_upsampler import train_upsampler

SIDE, SEED = 192, 7
LITE0 = 0  # its place among the teachers of make_spec


@pytest.fixture(scope="module")
def photographs(crops, encode, tmp_path_factory) -> Path:
    """``train``: squares of three photographs as JPEG files; ``held_out``: of a fourth."""
    root = tmp_path_factory.mktemp("photographs")
    for i, (label, pixels) in enumerate(crops(56, SIDE, SEED)):
        path = root / ("held_out" if label == "chelsea" else "train") / label / f"{i:03d}.jpg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(encode(pixels, "JPEG"))
    return root


@pytest.fixture
def small(make_spec, photographs):
    """small(results_dir, **fields of train_upsampler) -> a spec that trains test_vit's upsampler for a moment."""

    def make(results_dir: Path, **fields):
        section = {"teacher": "vit", "steps": 6, "batch_size": 4, "width": 16, "heads": 2, "fit_images": 8, "views": 1}
        dataset = {"train_dataset": {"tar_data_sources": [], "images_dir": str(photographs / "train")}}
        return make_spec(results_dir, {"dataset": dataset, "train_upsampler": section | fields})

    return make


@pytest.fixture(scope="module")
def trained(make_spec, photographs, tmp_path_factory):
    """EfficientNet-Lite0, as ImageNet trained it, at 96 pixels: a 3 x 3 map made 6 x 6."""
    spec = make_spec(
        tmp_path_factory.mktemp("trained"),
        {
            "dataset": {
                "train_dataset": {"tar_data_sources": [], "images_dir": str(photographs / "train")},
                "val_dataset": {"tar_data_sources": [], "images_dir": str(photographs / "held_out")},
            },
            "train_upsampler": {
                "teacher": "lite0",
                "steps": 20,
                "fit_images": 32,
                "batch_size": 8,
                "views": 1,
                "warmup_steps": 5,
                "width": 64,
                "heads": 2,
                "log_interval": 5,
            },
        },
    )
    spec["distill"]["teacher"][LITE0] |= {"input_size": 96, "match_student_resolution": False}
    return train_upsampler(spec)


@pytest.mark.proof
def test_it_is_more_consistent_than_bilinear_on_a_photograph_that_training_never_saw(trained):
    before, after = trained.before, trained.after
    assert trained.held_out == 14
    # Nearly all of it is the average that it begins as: what three photographs teach holds for few others.
    assert after.featsharp < 0.9 * after.bilinear
    assert after.bilinear <= before.bilinear  # its blur was trained as well
    lines = [json.loads(line) for line in (trained.folder / "status.json").read_text().splitlines()]
    assert [lines[0]["status"], lines[-1]["status"]] == ["STARTED", "SUCCESS"]
    assert [line["step"] for line in lines if "step" in line] == [5, 10, 15, 20]
    assert lines[-1]["kpi"]["consistency/featsharp"] == pytest.approx(after.featsharp)
    assert json.loads((trained.folder / "results.json").read_text())["after"]["bilinear"] == after.bilinear
    assert load_spec(trained.folder / "experiment.yaml").train_upsampler.steps == 20


@pytest.mark.proof
def test_it_learns_the_images_that_it_is_trained_on(small, photographs, tmp_path):
    spec = small(tmp_path, steps=60, lr=5e-3, fit_images=16)
    some = tmp_path / "some"
    for path in sorted((photographs / "train").rglob("*.jpg"))[:8]:
        (some / path.parent.name).mkdir(parents=True, exist_ok=True)
        (some / path.parent.name / path.name).write_bytes(path.read_bytes())
    for split in ("train_dataset", "val_dataset"):
        spec["dataset"][split] = {"images_dir": str(some)}
    result = train_upsampler(spec)
    assert result.after.featsharp < 0.9 * result.before.featsharp, result


def test_a_student_learns_from_the_finer_map(trained, make_spec, distil, tmp_path):
    spec = make_spec(tmp_path)
    entry = spec["distill"]["teacher"][LITE0]
    entry |= {"input_size": 96, "match_student_resolution": False}
    plain = design_models(load_spec(spec), "distill")
    entry |= {"adaptor": "featsharp", "upsample_factor": 2, "upsampler_checkpoint": str(trained.path)}
    finer = design_models(load_spec(spec), "distill")
    assert (plain.infos["lite0"].grid, plain.grids["lite0"]) == ((3, 3), (3, 3))
    assert (finer.infos["lite0"].grid, finer.grids["lite0"]) == ((6, 6), (4, 4))  # the student's own is 4 x 4
    trail = distil(spec)
    assert trail.result.global_step == 8 and all(math.isfinite(loss) for loss in trail.losses.values())
    assert trail.losses[8] < trail.losses[1]


@pytest.mark.proof
def test_the_same_spec_gives_the_same_upsampler_and_a_rerun_replaces_it(small, tmp_path):
    first = train_upsampler(small(tmp_path / "a"))
    tensors = load_file(first.path)
    other = train_upsampler(small(tmp_path / "a", seed=5))
    assert other.path == first.path
    changed = load_file(other.path)
    assert any(not tensors[name].equal(changed[name]) for name in tensors)
    again = train_upsampler(small(tmp_path / "b"))
    assert (again.before, again.after) == (first.before, first.after)
    assert all(tensors[name].equal(value) for name, value in load_file(again.path).items())


def test_the_task_in_a_terminal(small, tmp_path, capsys):
    import yaml

    spec = small(tmp_path / "results", steps=2)
    del spec["dataset"]["val_dataset"]  # then some training images are kept back
    file = tmp_path / "spec.yaml"
    file.write_text(yaml.safe_dump(spec))
    assert cli.main(["train_upsampler", "-e", str(file), "train_upsampler.held_out=5"]) == 0
    out = capsys.readouterr().out
    assert "bilinear" in out and "FeatSharp, trained" in out and "5 held-out images" in out
    assert str(tmp_path / "results" / "train_upsampler" / "upsampler.safetensors") in out.replace("\n", "")
    assert cli.main(["train_upsampler", "-e", str(file), "train_upsampler.teacher=nobody"]) == 1
    assert "train_upsampler.teacher" in capsys.readouterr().err


class TestRefused:
    def test_before_anything_is_written(self, small, tmp_path):
        with pytest.raises(SpecError, match=r"train_upsampler\.steps"):
            train_upsampler(small(tmp_path / "results", steps=0))
        assert not (tmp_path / "results").exists()

    def test_no_images_left(self, small, tmp_path):
        spec = small(tmp_path / "results")
        folder = tmp_path / "images" / "a"
        folder.mkdir(parents=True)
        photograph = next(Path(spec["dataset"]["train_dataset"]["images_dir"]).rglob("*.jpg"))
        (folder / "1.jpg").write_bytes(photograph.read_bytes())
        spec["dataset"]["train_dataset"]["images_dir"] = str(folder.parent)
        del spec["dataset"]["val_dataset"]
        with pytest.raises(RadioplatError, match=r"dataset\.val_dataset"):
            train_upsampler(spec)
        last = (tmp_path / "results" / "train_upsampler" / "status.json").read_text().splitlines()[-1]
        assert json.loads(last)["status"] == "FAILURE"

    def test_an_upsampler_of_another_teacher(self, trained, make_spec, tmp_path):
        spec = make_spec(tmp_path)
        spec["distill"]["teacher"][1] |= {
            "adaptor": "featsharp",
            "upsample_factor": 2,
            "upsampler_checkpoint": str(trained.path),
        }
        with pytest.raises(WeightsError, match=r"distill\.teacher\[1\]\.upsampler_checkpoint: .* width 1280"):
            design_models(load_spec(spec), "distill")
