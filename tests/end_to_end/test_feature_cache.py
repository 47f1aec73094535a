"""A second trial over the same shards asks no teacher, and learns the same."""

from __future__ import annotations

import re

import pytest
import safetensors.torch

from radioplat.errors import SpecError
from radioplat.launch.preflight.preflight import Level, Preflight
from radioplat.launch.preflight.steps import take_steps
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.plan.plan import plan
from radioplat.teachers.serving.teacher_runner import TeacherRunner
from radioplat.tracking.status import read_status

STILL = ("dataset.augmentation.random_crop.enable=false", "dataset.augmentation.random_flip.enable=false")


@pytest.fixture
def passes(monkeypatch):
    """Images that each teacher was really asked for, padding aside."""
    seen: dict[str, int] = {}
    run = TeacherRunner.__call__

    def counted(self, pixels, grid, wanted):
        seen[self.model.name] = seen.get(self.model.name, 0) + len(pixels)
        return run(self, pixels, grid, wanted)

    monkeypatch.setattr(TeacherRunner, "__call__", counted)
    return seen


def hits(trail, teacher: str) -> list[float]:
    steps = [line for line in read_status(trail.folder / "status.json") if "max_step" in line]
    return [line["kpi"][f"cache/{teacher}/hits"] for line in steps]


def test_a_second_trial_makes_no_pass(make_spec, distil, passes, tmp_path):
    cache = f"feature_cache.dir={tmp_path / 'cache'}"
    plain = distil(make_spec(tmp_path / "plain"), *STILL)
    alone = dict(passes)
    assert alone == {"lite0": 48, "vit": 48}
    first = distil(make_spec(tmp_path / "first"), *STILL, cache)
    # Eight of the 24 places of the second epoch show an image again: the last six are three micro-batches. None of them
    # is paid for twice unless it was asked for before the first answers had been kept.
    paid = {name: count - alone[name] for name, count in passes.items()}
    passes.clear()
    second = distil(make_spec(tmp_path / "second"), *STILL, cache)
    assert passes == {}
    assert second.losses == first.losses
    assert second.losses == plain.losses
    for name in ("lite0", "vit"):
        assert hits(second, name) == [1.0] * 8
        paying, free = first.result.teacher_costs.teachers[name], second.result.teacher_costs.teachers[name]
        assert (paying.images, free.images, free.cached) == (48, 48, 48) and paying.cached in (0, 2, 4, 6)
        assert paying.seconds > 0 == free.seconds and paying.bytes == free.bytes > 0 == free.busy
        assert paid[name] == 48 - paying.cached == round(48 - 6 * sum(hits(first, name)))
    # A trial, not a rerun: the student learns otherwise, in other micro-batches.
    other = distil(make_spec(tmp_path / "other"), *STILL, cache, "train.optim.lr=5e-4", "dataset.batch_size=3")
    assert passes == {} and other.losses.keys() == second.losses.keys()
    assert other.losses[8] != second.losses[8]


@pytest.mark.proof
def test_drawn_views_are_those_of_the_same_places_of_the_order(make_spec, distil, passes, tmp_path):
    """A draw follows from seed and position: the same trial again hits, another seed sees other crops and misses."""
    spec = make_spec(tmp_path / "first", {"feature_cache": {"dir": str(tmp_path / "cache")}})
    spec["teachers"]["vit"]["cache"] = False
    spec["distill"]["target_norm"] = {"type": "standardize", "fit_batches": 1}
    steps = "train.max_steps=2"
    first = distil(spec, steps)
    passes.clear()
    again = distil(spec, steps, f"results_dir={tmp_path / 'again'}")
    assert passes == {"vit": 12} and again.losses == first.losses
    assert hits(again, "lite0") == [1.0, 1.0]
    with pytest.raises(KeyError):
        hits(again, "vit")
    passes.clear()
    distil(spec, steps, f"results_dir={tmp_path / 'seed'}", "dataset.train_dataset.seed=7")
    assert passes == {"vit": 12, "lite0": 12}


@pytest.mark.proof
def test_a_run_that_repeats_its_views_asks_the_teachers_once(make_spec, distil, passes, tmp_path):
    """By default, and it learns what it learns without: random crops, one of each image."""
    few = ("train.num_epochs=4", "dataset.augmentation.views_per_image=1")
    plain = distil(make_spec(tmp_path / "plain"), *few, "feature_cache.enabled=false")
    assert not (plain.folder / "feature_cache").exists()
    alone = dict(passes)
    passes.clear()
    spec = load_spec(make_spec(tmp_path / "cached"), few)
    assert re.search(r"at most .*; \d+% of the run's views repeat", plan(spec).facts["feature cache"])
    cached = distil(make_spec(tmp_path / "cached"), *few)
    assert cached.losses == plain.losses
    assert hits(cached, "lite0")[-1] == 1.0 and passes["lite0"] < alone["lite0"]
    assert list((cached.folder / "feature_cache").iterdir())
    assert load_spec(cached.folder / "experiment.yaml").feature_cache.dir is None
    more = distil(make_spec(tmp_path / "cached"), *few, "train.num_epochs=5")
    assert hits(more, "lite0")[-4:] == [1.0] * 4
    assert not any("feature_cache.dir" in line["message"] for line in read_status(more.folder / "status.json"))
    # Nothing repeats with other crops in each pass, so nothing is stored.
    other = [few[0], "dataset.augmentation.views_per_image=0"]
    assert "feature cache" not in plan(load_spec(make_spec(tmp_path / "none"), other)).facts
    full = [*few, "feature_cache.max_bytes=1000"]
    assert "none; " in plan(load_spec(make_spec(tmp_path / "full"), full)).facts["feature cache"]


@pytest.mark.proof
def test_the_number_of_views_follows_the_number_of_passes(make_spec, distil, tmp_path):
    """Unset, no view is shown more than four times; a run that has begun keeps its views, and 0 repeats none."""
    unset = "dataset.augmentation.views_per_image=null"

    def decided(epochs: int, *overrides: str) -> tuple[int | None, str]:
        changes = (unset, f"train.num_epochs={epochs}", "train.optim.warmup_epochs=0", *overrides)
        preflight = Preflight(load_spec(make_spec(tmp_path / "run"), changes), "distill", tmp_path / "x", Level.start)
        take_steps(preflight)
        fact = preflight.facts.get("decided for this run", "")
        return preflight.spec.dataset.augmentation.views_per_image, fact

    # Of 24 and 16 images, an epoch of 24 takes 16 and 8.
    assert decided(1) == (0, "")  # nothing would repeat
    assert decided(4)[0] == 1 and "views_per_image=1 (2.67 passes" in decided(4)[1]
    assert decided(7)[0] == 2 and decided(30)[0] == 5
    assert decided(30, "feature_cache.max_bytes=100000") == (0, "")  # no room
    assert decided(30, "feature_cache.enabled=false") == (0, "")
    assert decided(30, "dataset.augmentation.views_per_image=0") == (0, "")
    assert decided(30, "dataset.augmentation.views_per_image=3")[0] == 3
    spec = make_spec(tmp_path / "begun")
    begun = distil(spec, unset, "train.num_epochs=4")
    assert hits(begun, "lite0")[-1] == 1.0
    more = load_spec(spec, (unset, "train.num_epochs=30"))
    preflight = take_steps(Preflight(more, "distill", begun.folder, Level.start))
    assert preflight.spec.dataset.augmentation.views_per_image == 1


@pytest.mark.proof
def test_a_full_cache_is_told_and_a_useless_one_refused(make_spec, distil, tmp_path):
    spec = make_spec(tmp_path / "run", {"feature_cache": {"dir": str(tmp_path / "cache"), "max_bytes": 100_000}})
    trail = distil(spec, "train.max_steps=2")
    lines = [line for line in read_status(trail.folder / "status.json") if line["verbosity"] == "WARNING"]
    assert any("feature_cache.max_bytes" in line["message"] for line in lines)
    assert sum(path.stat().st_size for path in (tmp_path / "cache").iterdir()) <= 100_000
    # What plan says of a sample is what one takes: the files hold every layout, and nothing else beside key and sum.
    sizes = set()
    for path in (tmp_path / "cache").iterdir():
        tensors = safetensors.torch.load_file(path)
        outputs = {name: t for name, t in tensors.items() if name.startswith("feature.")}
        sizes.add((*outputs, sum(2 * t[0].numel() for t in outputs.values())))
    said = plan(load_spec(spec)).facts["feature cache"]
    assert f": {sum(size for *_, size in sizes):,} bytes a sample, at most " in said
    (tmp_path / "file").write_text("")
    with pytest.raises(SpecError, match=r"feature_cache\.dir"):
        distil(spec, f"feature_cache.dir={tmp_path / 'file' / 'x'}", f"results_dir={tmp_path / 'refused'}")
