"""Reading specs: what is accepted, what is refused, and where the finger points."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from radioplat.errors import SpecError
from radioplat.spec.loading.load import load_spec, to_yaml
from radioplat.spec.schema.cluster import TeacherServiceConfig
from radioplat.spec.schema.distill import LossType, Mode, PartitionConfig, TeacherConfig
from radioplat.spec.schema.root import Spec
from radioplat.spec.schema.train import Policy, Precision

EXAMPLE = Path(__file__).parents[3] / "specs" / "radio_two_teachers.yaml"


def problems(source=None, *overrides: str) -> dict[str, str]:
    """Message and hint by field path."""
    with pytest.raises(SpecError) as caught:
        load_spec(source, overrides)
    return {p.where: f"{p.message}. {p.hint}" for p in caught.value.problems}


def test_defaults_are_a_spec():
    assert load_spec() == Spec()


def test_the_published_example_is_accepted_word_for_word():
    before = EXAMPLE.read_bytes()
    spec = load_spec(EXAMPLE)
    assert spec.dataset.train_dataset.native_resolution_filter.min_short_side == 224
    assert [s.scale_factor for s in spec.dataset.train_dataset.tar_data_sources] == [2.0, 1.0]
    assert spec.train.precision is Precision.bf16 and spec.train.optim.policy is Policy.cosine
    assert spec.distill.loss_type is LossType.BALANCED
    assert [t.mode for t in spec.distill.teacher] == [Mode.spatial, Mode.summary]
    assert spec.distill.teacher[0].input_size == 432
    assert EXAMPLE.read_bytes() == before


@pytest.mark.parametrize(
    ("tree", "where", "hint"),
    [
        ({"trian": {}}, "trian", "Did you mean train?"),
        ({"train": {"num_epoch": 1}}, "train.num_epoch", "Did you mean train.num_epochs?"),
        ({"train": {"optim": {"polcy": 1}}}, "train.optim.polcy", "Did you mean train.optim.policy?"),
        (
            {"dataset": {"train_dataset": {"tar_data_sources": [{"root_dir": "a"}, {"root_dir": "b", "scale": 2}]}}},
            "dataset.train_dataset.tar_data_sources[1].scale",
            "Did you mean dataset.train_dataset.tar_data_sources[1].scale_factor?",
        ),
        (
            {"distill": {"teacher": [{}, {"model": {"backbone": {"tipe": "x"}}}]}},
            "distill.teacher[1].model.backbone.tipe",
            "Did you mean distill.teacher[1].model.backbone.type?",
        ),
        ({"teachers": {"clip": {"replica": 2}}}, "teachers.clip.replica", "Did you mean teachers.clip.replicas?"),
        ({"train": {"lr": 1e-3}}, "train.lr", "Did you mean train.optim.lr?"),
        ({"zzz": 1}, "zzz", "Valid here: cluster"),
    ],
)
def test_unknown_field_names_the_nearest_valid_one(tree, where, hint):
    assert hint in problems(tree)[where]


def test_everything_wrong_is_reported_at_once():
    found = problems(
        {
            "train": {"num_epochs": "many", "precison": "bf16", "optim": {"policy": "exponential"}},
            "dataset": {"train_dataset": {"tar_data_sources": [{"scale_factor": 2}]}},
            "distill": {"teacher": [{"norm_mean": [0.5, "x", 0.5]}], "loss_lambda": None},
        }
    )
    assert set(found) == {
        "train.num_epochs",
        "train.precison",
        "train.optim.policy",
        "dataset.train_dataset.tar_data_sources[0].root_dir",
        "distill.teacher[0].norm_mean[1]",
        "distill.loss_lambda",
    }
    assert "cosine" in found["train.optim.policy"]


def test_required_values():
    assert "required" in problems({"dataset": {"train_dataset": {"tar_data_sources": [{}]}}}).popitem()[1]
    # The user's own ??? asks for a value too, even where there is a default.
    assert "train.num_epochs=..." in problems({"train": {"num_epochs": "???"}})["train.num_epochs"]
    assert load_spec({"train": {"num_epochs": "???"}}, ["train.num_epochs=3"]).train.num_epochs == 3


@pytest.mark.parametrize(
    ("tree", "where"),
    [
        ({"dataset": 3}, "dataset"),
        ({"dataset": None}, "dataset"),
        ({"train": {"optim": {"betas": 0.9}}}, "train.optim.betas"),
        ({"distill": {"teacher": "clip"}}, "distill.teacher"),
        ({"distill": {"teacher": ["clip"]}}, "distill.teacher[0]"),
        ({"teachers": []}, "teachers"),
        ({"train": {"seed": 1.5}}, "train.seed"),
        ({"train": {"seed": True}}, "train.seed"),
        ({"train": {"optim": {"policy_params": 1}}}, "train.optim.policy_params"),
        (
            {"distill": {"teacher": [{"stochastic_resolutions": {"big": 1}}]}},
            "distill.teacher[0].stochastic_resolutions",
        ),
    ],
)
def test_values_of_the_wrong_kind(tree, where):
    (found,) = problems(tree)
    assert found.startswith(where)


def test_interpolation():
    spec = load_spec(
        {
            "train": {"seed": 7},
            "dataset": {
                "val_img_size": "${dataset.img_size}",  # a default that the file does not mention
                "train_dataset": {"seed": "${train.seed}", "images_dir": "${results_dir}/images"},
                "val_dataset": "${dataset.train_dataset}",
            },
        },
        ["dataset.img_size=96"],
    )
    assert spec.dataset.val_img_size == 96
    assert spec.dataset.val_dataset.seed == 7 and spec.dataset.val_dataset.images_dir == "results/images"
    assert (
        "dataset.image_size" in problems({"dataset": {"val_img_size": "${dataset.image_size}"}})["dataset.val_img_size"]
    )
    assert "Integer" in problems({"dataset": {"val_img_size": "${results_dir}"}})["dataset.val_img_size"]


@pytest.mark.parametrize("key", ["distill.teacher.name", "distill.teacher[0].name", "distill.teacher.0.name"])
def test_a_single_teacher_mapping_is_a_list_of_one(key):
    tree = {"distill": {"teacher": {"name": "a", "input_size": 64}}}
    (teacher,) = load_spec(tree, [f"{key}=b"]).distill.teacher
    assert (teacher.name, teacher.input_size) == ("b", 64)
    assert tree == {"distill": {"teacher": {"name": "a", "input_size": 64}}}


class TestOverrides:
    def test_addresses_and_values(self):
        spec = load_spec(
            EXAMPLE,
            [
                "distill.teacher[0].mode=combo",
                "distill.teacher.1.mode=spatial",
                "train.optim.lr=1e-3",
                "train.optim.betas=[1e-1, 0.9]",
                "train.optim.policy_params={min_lr: 1e-5}",
                "train.optim.policy_params.warm=2",
                "train.max_steps=null",
                "train.seed=3",
                "train.seed=4",
                "+train.zero_stage=2",
                "wandb.name=a=b",
                "model.backbone.kwargs.depth=2",
                "distill.teacher[0].stochastic_resolutions.224=0.5",
                "teachers.clip.replicas=2",
            ],
        )
        assert [t.mode for t in spec.distill.teacher] == [Mode.combo, Mode.spatial]
        assert spec.train.optim.lr == 1e-3 and spec.train.optim.betas == [0.1, 0.9]
        assert spec.train.optim.policy_params == {"min_lr": 1e-5, "warm": 2}
        assert spec.train.max_steps is None and spec.train.seed == 4 and spec.train.zero_stage == 2
        assert spec.wandb.name == "a=b" and spec.model.backbone.kwargs == {"depth": 2}
        assert spec.distill.teacher[0].stochastic_resolutions == {224: 0.5}
        assert spec.teachers == {"clip": TeacherServiceConfig(replicas=2)}

    def test_a_list_is_replaced_and_grows_at_its_end(self):
        spec = load_spec(EXAMPLE, ["distill.teacher=[{name: a}]", "distill.teacher[1].name=b"])
        assert spec.distill.teacher == [TeacherConfig(name="a"), TeacherConfig(name="b")]
        first = "dataset.train_dataset.tar_data_sources[0].root_dir"
        assert load_spec(None, [f"{first}=/x"]).dataset.train_dataset.tar_data_sources[0].root_dir == "/x"

    @pytest.mark.parametrize(
        "override",
        [
            "train",
            "=3",
            "train..seed=1",
            "train[x]=1",
            ".train=1",
            "distill.teacher[7].name=a",
            "distill.teacher.x.name=a",
            "results_dir.x=1",
            "train.seed=[1",
            "train.seed=${",
            "distill.teacher=null",
        ],
    )
    def test_refused(self, override):
        (where,) = problems(EXAMPLE, override)
        assert override.partition("=")[0] in where or override.startswith("=")


@pytest.mark.parametrize(
    ("block", "task"),
    [
        ({"backbone": {"type": "x"}, "num_queries": 300, "num_feature_levels": 4, "dec_layers": 6}, "DINO"),
        ({"backbone": {"type": "x"}, "num_decoder_layers": 3, "hidden_dim": 256}, "RT-DETR"),
        ([{"decoder": {}}], "SegFormer"),
    ],
)
def test_a_block_of_another_task_is_recognised(block, task):
    found = problems({"distill": {"teacher": block}})
    assert list(found) == ["distill.teacher[0]"]
    assert "another task" in found["distill.teacher[0]"] and task in found["distill.teacher[0]"]


class TestFiles:
    def test_the_file_is_only_read(self, tmp_path):
        file = tmp_path / "spec.yaml"
        text = b"# mine\r\ntrain:   {num_epochs:  2}  \n\n"
        file.write_bytes(text)
        assert load_spec(file, ["train.num_epochs=5"]).train.num_epochs == 5
        assert file.read_bytes() == text and list(tmp_path.iterdir()) == [file]

    @pytest.mark.parametrize("text", [b"a: [1", b"- a\n- b\n", b"\xff\xfe\x00", b"a: 1\na: 2\n"])
    def test_what_is_no_spec_is_named(self, tmp_path, text):
        file = tmp_path / "spec.yaml"
        file.write_bytes(text)
        (where,) = problems(file)
        assert where.startswith(str(file))

    def test_missing_file_and_empty_file(self, tmp_path):
        assert str(tmp_path / "no.yaml") in problems(tmp_path / "no.yaml")
        (tmp_path / "empty.yaml").write_text("# nothing\n")
        assert load_spec(tmp_path / "empty.yaml") == Spec()

    def test_the_file_stands_before_the_field(self, tmp_path):
        (tmp_path / "s.yaml").write_text("trian: {}\n")
        assert list(problems(tmp_path / "s.yaml")) == [f"{tmp_path / 's.yaml'}: trian"]


SECRET = "hunter2secret"


@pytest.mark.parametrize(
    "override",
    [
        "encryption_key=[{}",
        "encryption_key=[{}]",
        "encryption_key={{a: {}}}",
        "encryption_key=${{{}}}",
        "encryption_key=${{{}",
        "encryption_key {}",
        "encryption_key:{}",
        "encryption_key.x={}",
    ],
)
def test_an_encryption_key_is_never_shown_from_an_override(override):
    assert SECRET not in said(None, override.format(SECRET))


@pytest.mark.parametrize("text", ["[{}]", '"{}', "*{}", "!{} x", "${{{}", "a${{{}}}", "{{{}: [}}"])
def test_an_encryption_key_is_never_shown_from_a_file(tmp_path, text):
    (tmp_path / "s.yaml").write_text("train: {seed: 1}\nencryption_key: " + text.format(SECRET) + "\n")
    assert SECRET not in said(tmp_path / "s.yaml")


def said(source: Path | None, *overrides: str) -> str:
    """Return what a user sees of a spec: the error, or what a run writes."""
    try:
        return to_yaml(load_spec(source, overrides))
    except SpecError as error:
        return str(error)


INTEGERS = st.integers(1 - 2**63, 2**63 - 1)


@settings(max_examples=8, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    lr=st.floats(1e-9, 0.99),  # the rest of it is a share, too
    name=st.none() | st.text(st.characters(blacklist_categories=["Cs", "Cc"]), min_size=1, max_size=8),
    mode=st.none() | st.sampled_from(Mode),
    sizes=st.dictionaries(st.integers(1, 999), st.floats(0, 1), max_size=2),
    kwargs=st.dictionaries(
        st.sampled_from("abc"), st.none() | st.booleans() | INTEGERS | st.lists(INTEGERS), max_size=2
    ),
    mean=st.lists(st.floats(-1, 1), max_size=3),
)
def test_written_out_and_read_back_it_is_equal(lr, name, mode, sizes, kwargs, mean, tmp_path_factory):
    spec = Spec()
    spec.train.optim.lr = lr
    spec.wandb.name = None if name is None or "$" in name or name == "???" else name
    spec.model.backbone.kwargs = kwargs
    spec.distill.teacher = [TeacherConfig(mode=mode, stochastic_resolutions=sizes, norm_mean=mean)]
    spec.distill.partitions = [PartitionConfig(lr, ["a", "b"]), PartitionConfig(1 - lr)]
    file = tmp_path_factory.mktemp("spec") / "s.yaml"
    file.write_text(to_yaml(spec), encoding="utf-8")
    assert load_spec(file) == spec


def test_a_spec_and_its_mapping_are_specs():
    spec = load_spec(EXAMPLE)
    assert load_spec(spec) == spec and load_spec(dataclasses.asdict(spec)) == spec
    assert load_spec(spec, ["train.seed=1"]).train.seed == 1 and spec.train.seed == 1234


def test_auto_leaves_a_number_or_truth_value_to_the_platform():
    fields = {"distill": {"use_mlp": "auto", "head_fit": {"images": "auto"}}}
    spec = load_spec(fields, ["train.optim.head_warmup_epochs=auto", "model.backbone.freeze_norm=auto"])
    assert spec == load_spec(None)
    assert load_spec(None, ["results_dir=auto"]).results_dir == "auto"
    with pytest.raises(SpecError, match=r"train\.num_gpus"):  # it has a value by default
        load_spec(None, ["train.num_gpus=auto"])


def test_sizes_of_a_json_file_are_numbers_although_its_keys_are_text(tmp_path):
    chances = {"64": 0.25, "128": 0.75}
    tree = {
        "dataset": {"augmentation": {"multi_scales": [{"64": 0.1}, {"128": 0.9}]}},
        "distill": {
            "partitions": [{"share": 1.0, "sizes": chances}],
            "teacher": [{"stochastic_resolutions": chances}],
        },
    }
    path = tmp_path / "spec.json"
    path.write_text(json.dumps(tree))
    spec = load_spec(path)
    assert spec.distill.partitions[0].sizes == spec.distill.teacher[0].stochastic_resolutions == {64: 0.25, 128: 0.75}
    assert spec.dataset.augmentation.multi_scales == [{64: 0.1}, {128: 0.9}]
    with pytest.raises(SpecError, match="a size or {size: probability} is expected here"):
        load_spec({"distill": {"partitions": [{"share": 1.0, "sizes": {"small": 1.0}}]}})
