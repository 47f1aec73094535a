"""The spec of a stage: what the user's changes reach, and which changes begin which stage anew."""

from __future__ import annotations

import copy
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from radioplat.errors import SpecError
from radioplat.models.quantized.architecture import LayerFormats, Quantization
from radioplat.models.student.checkpoint import save_student
from radioplat.models.student.student import Student, StudentArchitecture
from radioplat.spec.checks.tasks.prune import prune_problems
from radioplat.spec.loading.load import load_spec
from radioplat.spec.schema.compress import Stage
from radioplat.spec.schema.low_rank import LowRankConfig
from radioplat.spec.schema.prune import PruneBudget, PruneConfig, PruneMode, SparsityConfig, SparsityPattern
from radioplat.spec.schema.root import Spec
from radioplat.tasks.compress.definition import Inputs, Product
from radioplat.tasks.compress.derive import check_chain, place, stage_spec
from radioplat.tasks.compress.groups import Step, groups_of
from radioplat.tasks.compress.relax import milder_low_rank, milder_prune
from radioplat.tasks.compress.stages import STAGES
from radioplat.tasks.distill.retrain import retraining_spec
from radioplat.tasks.graph.fingerprint import hashed_fields
from radioplat.tasks.quantize.qat import training_spec

CHANGES_STUDENT = {stage for stage, definition in STAGES.items() if definition.changes_student}
QUANTIZES = {stage for stage, definition in STAGES.items() if definition.quantizes}


def steps(spec) -> dict[str, Step]:
    """Every stage by its name."""
    return {step.name: step for group in groups_of(spec.compress) for step in group.steps}


def test_changes_reach_the_stages_that_they_name():
    asked = [
        "compress.stages=[prune,retrain,prune,retrain]",
        "compress.changes.retrain=[train.num_epochs=3,train.seed=5]",
        "compress.changes.04_retrain=[train.num_epochs=7]",
    ]
    spec = load_spec(None, asked)
    found = {name: stage_spec(spec, step).train for name, step in steps(spec).items()}
    assert [train.num_epochs for train in found.values()] == [10, 3, 10, 7]
    assert [train.seed for train in found.values()] == [1234, 5, 1234, 5]
    assert spec.train.num_epochs == 10
    spec.compress.changes["prune"] = ["prune.amuont=0.1"]
    with pytest.raises(SpecError, match="prune.amuont: unknown field. Did you mean prune.amount"):
        stage_spec(spec, steps(spec)["01_prune"])


def test_a_stage_reads_what_the_one_before_left_and_writes_into_its_own_folder(tmp_path):
    spec = load_spec(
        None,
        [
            "compress.stages=[prune,retrain,evaluate,export,engine,qat]",
            "prune.results_dir=elsewhere",
            "model.backbone.pretrained_backbone_path=w.pth",
            "train.checkpoint_dir=s3://b/c",
            "distill.then=[evaluate]",
            "dataset.test_dataset.images_dir=test",
            "evaluate.models=[{name: other, path: p}]",
        ],
    )
    kwargs = {"depth": 1, "embed_dim": 32, "num_heads": 2}
    student = Student(StudentArchitecture(type="radio_vit_tiny_patch16", kwargs=kwargs, img_size=32))
    save_student(student, student.state_dict(), tmp_path)
    inputs = Inputs(
        {Product.student: tmp_path, Product.onnx: Path("s.onnx")}, {"00_start": tmp_path, "04_export": Path("s.onnx")}
    )
    found = {
        step.stage: place(stage_spec(spec, step), step, Path("out") / name, inputs, "0123456789")
        for name, step in steps(spec).items()
    }
    assert {s.results_dir for s in found.values()} == {f"out/{name}" for name in steps(spec)}
    assert found[Stage.prune].prune.checkpoint == str(tmp_path) and found[Stage.prune].prune.results_dir is None
    # Without teachers it is task train.
    retrain = found[Stage.retrain]
    assert retrain.train.pretrained_model_path == str(tmp_path) and retrain.distill.then == []
    assert retrain.model.backbone.pretrained_backbone_path is None
    assert retrain.train.checkpoint_dir == "s3://b/c/compress/02_retrain-01234567"
    assert found[Stage.qat].train.checkpoint_dir == "s3://b/c/compress/06_qat-01234567"
    assert found[Stage.export].export.checkpoint == str(tmp_path)
    judged = found[Stage.evaluate].evaluate
    assert judged.checkpoint is None and [m.path for m in judged.models] == ["p", str(tmp_path), "s.onnx"]
    assert found[Stage.evaluate].dataset.val_dataset.images_dir == "test"
    assert found[Stage.export].dataset.val_dataset.images_dir is None
    assert found[Stage.engine].gen_trt_engine.onnx_file == "s.onnx"
    assert found[Stage.engine].gen_trt_engine.tensorrt.data_type == "fp32"
    assert spec.prune.results_dir == "elsewhere"


@pytest.mark.parametrize(
    ("layers", "said"),
    [
        ([("int8", None)], "fp32"),
        ([("fp8", None)], "fp32"),
        ([("int4", None)], "int8"),
        ([("int8", "int8"), ("fp8", None)], "int8"),
        ([("fp8", "fp8"), ("int8", None)], "fp8"),
    ],
)
def test_an_engine_is_typed_by_what_multiplies(layers, said, tmp_path):
    spec = load_spec(None, ["compress.stages=[export,engine]"])
    kwargs = {"depth": 1, "embed_dim": 32, "num_heads": 2}
    names = ("backbone.blocks.0.mlp.fc1", "backbone.blocks.0.mlp.fc2")
    how = Quantization({name: LayerFormats(*formats) for name, formats in zip(names, layers, strict=False)})
    student = Student(StudentArchitecture("radio_vit_tiny_patch16", kwargs, img_size=32, quantized=how))
    save_student(student, student.state_dict(), tmp_path)
    (step,) = (step for step in steps(spec).values() if step.stage is Stage.engine)
    there = place(
        stage_spec(spec, step),
        step,
        tmp_path / "out",
        Inputs({Product.student: tmp_path, Product.onnx: Path("s.onnx")}),
        "0123456789",
    )
    assert there.gen_trt_engine.tensorrt.data_type == said


def test_no_two_trainings_of_a_chain_share_a_second_home(tmp_path):
    asked = ["compress.stages=[prune,low_rank,prune,quantize,qat,retrain]", "train.checkpoint_dir=s3://b/c/"]
    asked += ["prune.retrain.steps=2", "low_rank.retrain.steps=2"]
    spec, homes = load_spec(None, asked), []
    for name, step in steps(spec).items():
        derived = stage_spec(spec, step)
        for run, said in ((name, "a" * 64), (f"{name}.relaxed1", "b" * 64), (name, "c" * 64)):
            there = place(copy.deepcopy(derived), step, tmp_path / run, Inputs({Product.student: tmp_path}), said)
            if step.stage in (Stage.prune, Stage.low_rank):
                config = getattr(there, step.stage.value).retrain
                there = retraining_spec(there, config, tmp_path, tmp_path / run / step.stage.value / "round_1")
            elif step.stage in QUANTIZES:
                there, _ = training_spec(there, tmp_path, tmp_path / "qat")
            homes.append(there.train.checkpoint_dir)
    assert len(set(homes)) == len(homes) == 18
    assert homes[0] == "s3://b/c/compress/01_prune-aaaaaaaa/prune/round_1"


def test_two_engines_share_a_calibration_cache_that_is_there(tmp_path):
    cache, where = tmp_path / "c.cache", "gen_trt_engine.tensorrt.calibration.cal_cache_file"
    spec = load_spec(None, ["compress.stages=[export,engine,export,engine]", f"{where}={cache}"])
    with pytest.raises(SpecError, match=f"{where}: 02_engine and 04_engine would both write"):
        check_chain(spec, list(steps(spec).values()))
    cache.touch()
    check_chain(spec, list(steps(spec).values()))


def test_two_exports_that_would_write_one_file_are_refused():
    asked = ["compress.stages=[export,engine,export,engine]", "dataset.val_dataset.images_dir=x"]
    named = ["export.onnx_file=out/s.onnx", "export.bundle=out/b", "gen_trt_engine.trt_engine=out/s.engine"]
    spec = load_spec(None, [*asked, *named])
    every = list(steps(spec).values())
    with pytest.raises(SpecError) as refused:
        check_chain(spec, every)
    assert [p.where for p in refused.value.problems] == [line.partition("=")[0] for line in named[:2]] + [
        "gen_trt_engine.trt_engine"
    ]
    assert "01_export and 03_export would both write out/s.onnx" in str(refused.value)
    check_chain(spec, every[:2])
    spec.compress.changes = {
        "03_export": ["export.onnx_file=out/t.onnx", "export.bundle=null"],
        "04_engine": ["gen_trt_engine.trt_engine=null"],
    }
    check_chain(spec, every)


CHANGES = {
    "prune.amount=0.25": {Stage.prune},
    "low_rank.energy=0.9": {Stage.low_rank},
    "train.optim.lr=0.5": CHANGES_STUDENT,
    "quantize.algorithm=entropy": QUANTIZES | {Stage.export},
    "quantize.calibration_batches=3": QUANTIZES | {Stage.export},
    "evaluate.max_images=3": {Stage.evaluate},
    "export.opset_version=20": {Stage.export},
    "gen_trt_engine.tensorrt.max_batch_size=64": {Stage.export, Stage.engine},
    "cluster.mode=ray": set(),
    "train.restart=true": set(),
    "results_dir=elsewhere": set(),
    "wandb.enable=true": set(),
    "train.trackers=[wandb]": set(),
    "prune.results_dir=elsewhere": set(),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_begins_the_stages_anew_that_depend_on_it(change):
    after = load_spec(None, [change])
    touched = {stage for stage in Stage if hashed_fields(after, STAGES[stage].depends_on) != "{}\n"}
    assert touched == CHANGES[change]


@pytest.mark.parametrize("stage", Stage)
def test_a_default_is_not_hashed(stage):
    assert hashed_fields(Spec(), STAGES[stage].depends_on) == "{}\n"


@given(st.floats(0.01, 0.99), st.integers(1, 6))
def test_a_retry_of_pruning_takes_less_each_time(share, attempt):
    def asked(config: PruneConfig, number: int) -> float:
        (line,) = milder_prune(Spec(prune=config), number)
        return float(line.partition("=")[2])

    amount = PruneConfig(amount=share)
    assert 0 < asked(amount, attempt + 1) < asked(amount, attempt) < share
    budget = PruneConfig(budget=PruneBudget(macs=share))
    assert share < asked(budget, attempt) < asked(budget, attempt + 1) < 1
    energy = LowRankConfig(energy=share)
    once, again = (milder_low_rank(Spec(low_rank=energy), n)[0] for n in (attempt, attempt + 1))
    assert share < float(once.partition("=")[2]) < float(again.partition("=")[2]) < 1
    assert milder_low_rank(Spec(low_rank=LowRankConfig(rank=6)), 1) == ["low_rank.rank=8"]


@pytest.mark.parametrize(("blocks", "counts"), [(1, []), (2, [1]), (3, [2, 1]), (5, [3, 2, 1]), (8, [6, 4, 3, 2, 1])])
def test_a_retry_takes_fewer_blocks_until_none_is_left(blocks, counts):
    spec = Spec(prune=PruneConfig(parts=[], blocks=blocks))
    retries = [milder_prune(spec, number) for number in range(1, 10)]
    assert retries == [[f"prune.blocks={count}"] for count in counts] + [[]] * (9 - len(counts))
    for lines in retries[: len(counts)]:
        assert not list(prune_problems(load_spec(spec, lines)))


def test_blocks_are_not_all_that_goes():
    spec = Spec(prune=PruneConfig(blocks=1, amount=0.4))
    assert milder_prune(spec, 1) == ["prune.amount=0.3", "prune.blocks=0"]
    assert milder_prune(spec, 2) == ["prune.amount=0.225", "prune.blocks=0"]
    zeros = Spec(prune=PruneConfig(blocks=1, sparsity=SparsityConfig(SparsityPattern.two_of_four)))
    assert [milder_prune(zeros, n) for n in (1, 2)] == [["prune.blocks=0"], []]
    threshold = Spec(prune=PruneConfig(mode=PruneMode.threshold, parts=[], blocks=1))
    assert milder_prune(threshold, 1) == []


def test_a_retry_is_a_spec():
    spec = load_spec(None, ["prune.amount=0.4", "prune.blocks=3", "prune.budget.params=0.5"])
    again = load_spec(spec, milder_prune(spec, 1)).prune
    assert (again.amount, again.blocks, again.budget.params) == (0.4, 2, 0.625)
