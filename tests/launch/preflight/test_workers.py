"""What a start decides by its workers: number formats, compilers, replicas."""

from __future__ import annotations

from pathlib import Path

import pytest

from radioplat.cluster.gpu_kinds import kind_of
from radioplat.cluster.resources import Resources
from radioplat.design.models import design_models
from radioplat.launch.preflight import readiness, workers
from radioplat.launch.preflight.preflight import AUTOMATIC, Level, Preflight
from radioplat.launch.preflight.steps import STEPS
from radioplat.spec.loading.load import load_spec, to_yaml
from radioplat.spec.schema.train import Precision
from radioplat.teachers.base.teacher import has_native_bf16

GPUS = Resources(64, 8, (kind_of("H100"),))
CPUS = Resources(64, 0)
STUDENT = {"type": "radio_vit_tiny_patch16", "kwargs": {"embed_dim": 32, "depth": 1, "num_heads": 2}}


def preflight(folder: Path, *overrides: str, resources: Resources | None = None) -> Preflight:
    entries = [{"name": n, "mode": "spatial", "loss_type": "MSE", "model": {"backbone": {"type": b}}}
               for n, b in (("small", "test_vit"), ("large", "vit_small_patch16_224"))]  # fmt: skip
    tree = {
        "results_dir": str(folder),
        "model": {"backbone": STUDENT},
        "dataset": {"img_size": 64, "batch_size": 4},
        "distill": {"teacher": entries},
    }
    spec = load_spec(tree, list(overrides))
    found = Preflight(spec, "distill", folder / "distill", resources=resources, on_ray=True)
    if resources is not None:
        found.models = design_models(spec, "distill")
    return found


def began(folder: Path, text: str) -> None:
    (folder / "distill" / "model_epoch_001").mkdir(parents=True)
    (folder / "distill" / "experiment.yaml").write_text(text)


@pytest.fixture
def without_gpus(monkeypatch):
    """This process sees no GPU, as on a machine without one."""
    monkeypatch.setattr("torch.cuda.device_count", lambda: 0)


def test_before_the_models_and_for_every_level():
    names = [step.__name__ for level, step in STEPS if level is Level.data]
    assert names.index("precision") < names.index("models")
    order = [step for _, step in STEPS]
    assert order.index(workers.replicas) < next(i for i, s in enumerate(order) if s.__name__ == "placement")


@pytest.mark.parametrize("level", [Level.data, Level.start])
def test_a_new_run_on_cpus_computes_fp32(tmp_path, without_gpus, level):
    found = preflight(tmp_path, "cluster.mode=local")
    found.level = level
    found.take(workers.precision)
    assert found.spec.train.precision is Precision.fp32 and found.spec.train.tf32 is True
    assert not found.facts and not found.problems
    assert (found.resources is None) == (level is Level.data)


@pytest.mark.parametrize("given", ["bf16", "fp32"])
def test_a_run_that_has_begun_keeps_its_formats(tmp_path, without_gpus, given):
    earlier = preflight(tmp_path, "cluster.mode=local", f"train.precision={given}", "train.tf32=false").spec
    began(tmp_path, to_yaml(earlier))
    again = preflight(tmp_path, "cluster.mode=local")
    again.take(workers.precision)
    assert again.spec.train.precision.value == given and again.spec.train.tf32 is False
    assert ("as this run began" in again.facts.get(AUTOMATIC, "")) == (given == "bf16")
    named = preflight(tmp_path, "cluster.mode=local", "train.precision=fp16", "train.tf32=true")
    named.take(workers.precision)
    assert named.spec.train.precision is Precision.fp16 and named.spec.train.tf32 is True


def test_a_run_of_a_version_without_these_fields_keeps_fp32(tmp_path, without_gpus):
    lines = to_yaml(preflight(tmp_path, "cluster.mode=local").spec).splitlines()
    kept = [line for line in lines if line.strip().partition(":")[0] not in ("tf32",) and line != "  precision: auto"]
    assert len(kept) == len(lines) - 2
    began(tmp_path, "\n".join(kept))
    found = preflight(tmp_path, "cluster.mode=local")
    found.take(workers.precision)
    assert found.spec.train.precision is Precision.fp32 and found.spec.train.tf32 is None


def test_compiling_is_asked_of_the_workers(tmp_path, monkeypatch):
    """A head node without a GPU or a compiler refuses no run whose workers have GPUs."""
    monkeypatch.setenv("PATH", "")
    monkeypatch.delenv("CXX", raising=False)
    compiled = "train.compile=true", "train.precision=bf16"
    on_gpus = preflight(tmp_path, *compiled, resources=GPUS)
    on_gpus.take(workers.compiling)
    assert not on_gpus.problems
    on_cpus = preflight(tmp_path, *compiled, resources=CPUS)
    on_cpus.take(workers.compiling)
    emulated = [] if has_native_bf16(workers.Resources.this_machine().device) else ["bf16 emulated"]
    said = [problem.message for problem in on_cpus.problems]
    assert {problem.where for problem in on_cpus.problems} == {"train.compile"}
    assert all(any(word in line for line in said) for word in [*emulated, "needs a C++ compiler"])
    plain = preflight(tmp_path, resources=CPUS)
    plain.take(workers.compiling)
    assert not plain.problems


def test_automatic_replicas_are_those_of_the_teachers_and_told(tmp_path):
    auto = "teachers={small: {replicas: auto, num_gpus: 0.5}, large: {replicas: auto}}"
    found = preflight(tmp_path, auto, "train.num_gpus=2", "train.global_batch_size=8", resources=GPUS)
    found.take(workers.replicas)
    small, large = (teacher.service.bounds for teacher in found.models.teachers)
    assert small == (1, 1) and large[0] == large[1] > 1  # the larger teacher is the slower one
    assert found.facts[AUTOMATIC].count("as many as keep up") == 2
    assert f"teachers.large.replicas={large[0]}" in found.facts[AUTOMATIC]
    assert found.spec.teachers["large"].replicas == "auto"  # a later start decides again


def test_too_few_gpus_are_refused_with_the_way_to_share_those_that_are_there(tmp_path):
    """Eight workers and two teachers with a GPU each; teachers that are inline compute on the workers' own."""
    eight = "train.num_gpus=8", "train.global_batch_size=32"
    found = preflight(tmp_path, *eight, resources=GPUS)
    found.take(readiness.placement)
    (problem,) = found.problems
    assert problem.message == "the run takes 10 GPUs and the cluster can have at most 8"
    assert problem.where == "train.num_gpus" and "teachers.<name>.placement to inline" in problem.hint
    inline = "teachers={small: {placement: inline}, large: {placement: inline}}"
    advised = preflight(tmp_path, *eight, inline, resources=GPUS)
    advised.take(readiness.placement)
    assert not advised.problems


def test_on_cpus_auto_is_one(tmp_path):
    found = preflight(tmp_path, "teachers.large.replicas=auto", resources=CPUS)
    found.take(workers.replicas)
    assert [teacher.service.replicas for teacher in found.models.teachers] == [1, 1]
    assert not found.facts and found.work is None
