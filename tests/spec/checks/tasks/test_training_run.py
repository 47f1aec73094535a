"""Every rule of ``check`` by an example that breaks it, and only it."""

from __future__ import annotations

from pathlib import Path

import pytest

from radioplat.errors import SpecError
from radioplat.spec.checks.tasks.training_run import check
from radioplat.spec.loading.load import load_spec

EXAMPLE = Path(__file__).parents[4] / "specs" / "radio_two_teachers.yaml"
T = "distill.teacher[0]"


def test_the_published_example_has_no_problem():
    assert check(load_spec(EXAMPLE)) == []


@pytest.mark.parametrize(
    ("override", "where"),
    [
        ("dataset.batch_size=0", "dataset.batch_size"),
        ("dataset.max_pixels=0", "dataset.max_pixels"),
        ("dataset.workers=0", "dataset.workers"),
        ("dataset.prefetch_batches=0", "dataset.prefetch_batches"),
        ("train.num_gpus=0", "train.num_gpus"),
        ("train.num_nodes=-1", "train.num_nodes"),
        ("train.num_epochs=0", "train.num_epochs"),
        ("train.checkpoint_interval=0", "train.checkpoint_interval"),
        ("train.log_interval=0", "train.log_interval"),
        ("train.max_steps=0", "train.max_steps"),
        ("train.max_non_finite_steps=0", "train.max_non_finite_steps"),
        ("train.global_batch_size=33", "train.global_batch_size"),
        ("train.global_batch_size=-32", "train.global_batch_size"),
        ("train.global_batch_size=0", "train.global_batch_size"),
        ("train.zero_stage=4", "train.zero_stage"),
        ("train.clip_grad_norm=-1", "train.clip_grad_norm"),
        ("dataset.storage_timeout_s=0", "dataset.storage_timeout_s"),
        ("dataset.storage_timeout_s=.inf", "dataset.storage_timeout_s"),
        ("dataset.read_timeout_s=-1", "dataset.read_timeout_s"),
        ("train.keep_last=0", "train.keep_last"),
        ("train.keep_every=3", "train.keep_every"),  # all stay while nobody says how many
        ("train.max_checkpoint_failures=-1", "train.max_checkpoint_failures"),
        ("train.checkpoint_dir=''", "train.checkpoint_dir"),
        ("train.checkpoint_dir=ftp://there/kept", "train.checkpoint_dir"),
        ("results_dir=s3://bucket/results", "results_dir"),
        ("dataset.augmentation.std=[1, 0, 1]", "dataset.augmentation.std[1]"),
        ("dataset.augmentation.mean=[0.5]", "dataset.augmentation.mean"),
        ("model.backbone.student_norm_std=[1, 1]", "model.backbone.student_norm_std"),
        ("model.backbone.drop_path=1.0", "model.backbone.drop_path"),
        (f"{T}.model.backbone.freeze_norm=true", f"{T}.model.backbone.freeze_norm"),
        (f"{T}.model.backbone.drop_path=0.1", f"{T}.model.backbone.drop_path"),
        (f"{T}.model.backbone.spectral_reparam=true", f"{T}.model.backbone.spectral_reparam"),
        (f"{T}.model.backbone.cpe=false", f"{T}.model.backbone.cpe"),
        ("train.damp=-0.1", "train.damp"),
        ("train.damp=.nan", "train.damp"),
        ("train.optim.lr=0", "train.optim.lr"),
        ("train.optim.lr=.nan", "train.optim.lr"),
        ("train.optim.warmup_epochs=-1", "train.optim.warmup_epochs"),
        ("train.optim.betas=[0.9]", "train.optim.betas"),
        ("train.optim.betas=[0.9, 1.0]", "train.optim.betas[1]"),
        ("train.optim.policy_params.gamma=2", "train.optim.policy_params.gamma"),
        ("train.optim.policy_params.min_lr=low", "train.optim.policy_params.min_lr"),
        ("train.optim.projector_lr=0", "train.optim.projector_lr"),
        ("train.optim.layer_decay=1.5", "train.optim.layer_decay"),
        ("train.optim.lr_mults={heads: -1}", "train.optim.lr_mults.heads"),
        ("train.optim.head_warmup_epochs=-1", "train.optim.head_warmup_epochs"),
        ("train.optim.head_warmup_epochs=1000", "train.optim.head_warmup_epochs"),
        ("train.ema_decay=1", "train.ema_decay"),
        ("train.offload=true", "train.offload"),
        ("train.engine=megatron", "train.engine"),
        ("train.min_workers=9999", "train.min_workers"),
        ("train.max_workers=0", "train.max_workers"),
        ("train.resize_interval_s=-1", "train.resize_interval_s"),
        ("train.regularizer.weight=1", "train.regularizer.type"),
        ("train.regularizer={type: L3, weight: 1}", "train.regularizer.type"),
        ("train.regularizer={type: L2, weight: -1}", "train.regularizer.weight"),
        ("wandb.sync_tensorboard=true", "wandb.sync_tensorboard"),
        ("wandb.mode=onlin", "wandb.mode"),
        ("wandb.finish_s=0", "wandb.finish_s"),
        ("distill.vitdet.prob=1.5", "distill.vitdet.prob"),
        ("distill.vitdet.window_sizes=[8, 1]", "distill.vitdet.window_sizes[1]"),
        ("distill.vitdet.num_global=0", "distill.vitdet.num_global"),
        ("distill.vitdet={num_global: 4, num_windowed: 2}", "distill.vitdet.num_windowed"),
        ("distill.mlp_hidden_size=0", "distill.mlp_hidden_size"),
        ("distill.mlp_num_inner=-1", "distill.mlp_num_inner"),
        ("distill.then=[export, fly]", "distill.then[1]"),
        ("teachers.nobody.replicas=2", "teachers.nobody"),
        ("cluster.gpu_hour_price=-1", "cluster.gpu_hour_price"),
        ("cluster.cpu_hour_price=.nan", "cluster.cpu_hour_price"),
        ("feature_cache.max_bytes=0", "feature_cache.max_bytes"),
        ("feature_cache.dir=''", "feature_cache.dir"),
        ("feature_cache.dir=http://host/x", "feature_cache.dir"),
        ("teachers.vit_h_14_siglip_clipa_224.replicas=0", "teachers.vit_h_14_siglip_clipa_224.replicas"),
        ("teachers.vit_h_14_siglip_clipa_224.replicas=most", "teachers.vit_h_14_siglip_clipa_224.replicas"),
        (
            "teachers.vit_h_14_siglip_clipa_224={replicas: auto, pool: lab}",
            "teachers.vit_h_14_siglip_clipa_224.replicas",
        ),
        ("teachers.vit_h_14_siglip_clipa_224.max_batch=0", "teachers.vit_h_14_siglip_clipa_224.max_batch"),
        ("teachers.vit_h_14_siglip_clipa_224.timeout_s=0", "teachers.vit_h_14_siglip_clipa_224.timeout_s"),
        (f"{T}.pretrained_teacher_model_path=null", f"{T}.pretrained_teacher_model_path"),
        (f"{T}.norm_mean=[0.5, 0.5]", f"{T}.norm_mean"),
        (f"{T}.norm_std=[1, 1, 0]", f"{T}.norm_std[2]"),
        (f"{T}.norm_std=[1, .inf, 1]", f"{T}.norm_std[1]"),
        (f"{T}.norm_mean=[0, .nan, 0]", f"{T}.norm_mean[1]"),
        (f"{T}.input_size=-3", f"{T}.input_size"),
        (f"{T}.mode=logits", f"{T}.loss_type"),
        (f"{T}.loss_type=KL", f"{T}.loss_type"),
        (f"{T}.upsample_factor=2", f"{T}.upsample_factor"),
        (f"{T}.upsampler_checkpoint=a.safetensors", f"{T}.upsampler_checkpoint"),
        (f"{T}.adaptor=featup", f"{T}.adaptor"),
        (f"{T}.summary_token_idx=-1", f"{T}.summary_token_idx"),
        (f"{T}.spatial_mlp_version=v3", f"{T}.spatial_mlp_version"),
        (f"{T}={{use_head: false, fd_upsample_factor: 2}}", f"{T}.fd_upsample_factor"),
        (f"{T}={{use_head: false, loss_type: KL, mode: logits}}", f"{T}.use_head"),
        (f"{T}.spatial_num_inner=-1", f"{T}.spatial_num_inner"),
        (f"{T}.fd_upsample_factor=0", f"{T}.fd_upsample_factor"),
        (f"{T}.stochastic_resolutions.224=-1", f"{T}.stochastic_resolutions.224"),
        (f"{T}.stochastic_resolutions.224=0", f"{T}.stochastic_resolutions"),
        ("dataset.augmentation.random_crop.scale_range=[0.9,0.5]", "dataset.augmentation.random_crop.scale_range"),
        ("dataset.augmentation.random_crop.ratio_range=[1.0]", "dataset.augmentation.random_crop.ratio_range"),
        (
            "dataset.augmentation.with_scale_random_crop.scale_range=[1.5,1]",
            "dataset.augmentation.with_scale_random_crop.scale_range",
        ),
        (
            "dataset.augmentation.random_rotate={enable: true, angle_list: []}",
            "dataset.augmentation.random_rotate.angle_list",
        ),
        ("dataset.augmentation.random_color.hue=0.7", "dataset.augmentation.random_color.hue"),
        ("dataset.augmentation.multi_scales=[0]", "dataset.augmentation.multi_scales"),
        ("dataset.augmentation.multi_scales=[{0: 1.0}]", "dataset.augmentation.multi_scales"),
        ("dataset.augmentation.multi_scales=[{224: -1.0}]", "dataset.augmentation.multi_scales"),
        ("dataset.augmentation.multi_scales=[{224: 0.0}]", "dataset.augmentation.multi_scales"),
        ("dataset.val_dataset.shift_equivariance=true", "dataset.val_dataset.shift_equivariance"),
        ("dataset.test_dataset.views_per_step=2", "dataset.test_dataset.views_per_step"),
        ("dataset.quant_calibration_dataset.views_per_step=2", "dataset.quant_calibration_dataset.views_per_step"),
        ("dataset.train_dataset.views_per_step=3", "dataset.train_dataset.views_per_step"),  # of a batch of 16
    ],
)
def test_rule(override, where, problems_of):
    assert [p.where for p in problems_of(EXAMPLE, [override])] == [where]


def test_views_of_a_step_that_would_be_the_same():
    two, where = "dataset.train_dataset.views_per_step=2", ["dataset.train_dataset.views_per_step"]
    still = ["random_crop.enable=false", "random_flip.enable=false"]
    still = [f"dataset.augmentation.{change}" for change in still]

    def found(*changes: str) -> list[str]:
        return [p.where for p in check(load_spec(EXAMPLE, [two, *changes]))]

    assert found() == found(*still, "dataset.train_dataset.shift_equivariance=true") == []
    assert found("dataset.augmentation.views_per_image=2") == []
    assert found("dataset.augmentation.views_per_image=1") == found(*still) == where


def test_what_zero_3_takes_apart():
    overrides = ["train.zero_stage=3", "train.compile=true", "model.backbone.spectral_reparam=true"]
    found = check(load_spec(EXAMPLE, overrides))
    assert [p.where for p in found] == ["model.backbone.spectral_reparam", "train.compile"]
    assert check(load_spec(EXAMPLE, ["train.zero_stage=2", *overrides[1:], "model.backbone.freeze_norm=true"])) == []


OPTIM, SOFT = "train.optim", "train.optim.policy=soft_start_annealing"
EXACT = "train.reduction=exact"


@pytest.mark.parametrize(
    ("overrides", "where"),
    [
        (["train.regularizer={type: L2, weight: 1e-5}", "train.zero_stage=3"], "train.regularizer"),
        (["train.engine=ddp", "train.zero_stage=1"], "train.zero_stage"),
        (["train.engine=ddp", "train.offload=true"], "train.offload"),
        (["train.engine=ddp", "train.precision=fp16"], "train.precision"),
        ([EXACT, "train.zero_stage=2"], "train.zero_stage"),
        ([EXACT, "train.zero_stage=1", "train.offload=true"], "train.offload"),
        ([EXACT, "train.precision=fp16"], "train.precision"),
        ([EXACT, "train.precision=bf16", f"{OPTIM}.optim=lamb"], f"{OPTIM}.optim"),
        ([EXACT, "train.precision=fp32", "train.zero_stage=1", f"{OPTIM}.optim=fusedlamb"], f"{OPTIM}.optim"),
        ([EXACT, "train.cudnn.benchmark=true"], "train.cudnn.benchmark"),
        ([EXACT, "dataset.batch_size=1", "train.global_batch_size=32769"], "train.global_batch_size"),
        (["distill.then=[evaluate]", "evaluate.use_ema=true"], "evaluate.use_ema"),
        (["distill.then=[export]", "export.use_ema=true"], "export.use_ema"),
        ([SOFT, f"{OPTIM}.warmup_epochs=1"], f"{OPTIM}.warmup_epochs"),
        ([SOFT, f"{OPTIM}.policy_params={{soft_start: 0.8}}"], f"{OPTIM}.policy_params.soft_start"),
        ([SOFT, f"{OPTIM}.policy_params={{annealing: 1.5}}"], f"{OPTIM}.policy_params.annealing"),
        ([SOFT, f"{OPTIM}.policy_params={{min_lr: 0}}"], f"{OPTIM}.policy_params.min_lr"),
    ],
)
def test_pairs_that_cannot_be(overrides, where):
    assert [p.where for p in check(load_spec(EXAMPLE, overrides))] == [where]


@pytest.mark.parametrize(
    "overrides",
    [
        [f"{OPTIM}.optim=lamb", "train.zero_stage=3"],
        [f"{OPTIM}.optim=lamb", "train.zero_stage=2", "train.offload=true", "train.precision=bf16"],
        [f"{OPTIM}.optim=sgd", "train.zero_stage=3", "train.offload=true"],
        ["teachers.vit_h_14_siglip_clipa_224.replicas=auto", "train.precision=auto", "train.tf32=false"],
        ["train.precision=fp16"],  # whether there is a GPU, `plan` looks
        [f"{OPTIM}.optim=fusedlamb", "train.precision=bf16"],
        ["train.engine=ddp", "train.precision=bf16", f"{OPTIM}.optim=lamb"],
        [EXACT, "train.zero_stage=1", "train.precision=bf16"],
        [EXACT, "train.precision=fp32", f"{OPTIM}.optim=lamb"],
        [EXACT, "train.engine=ddp", f"{OPTIM}.optim=lamb"],
        ["train.enable_ema=true", "train.zero_stage=3", "distill.then=[evaluate]", "evaluate.use_ema=true"],
        ["train.regularizer={type: L1, weight: 1e-5}", "train.zero_stage=2"],
        [SOFT, f"{OPTIM}.policy_params={{soft_start: 0.1, annealing: 0.8, min_lr: 1e-6}}"],
        [f"{OPTIM}.lr_mults={{blocks.0.*: 0.1}}", f"{OPTIM}.layer_decay=0.9", f"{OPTIM}.projector_lr=1e-3"],
    ],
)
def test_pairs_that_can(overrides):
    assert check(load_spec(EXAMPLE, overrides)) == []


NAMES = ["c_radio_v3_vit_huge_patch16_reg4_dinov2", "vit_h_14_siglip_clipa_224"]
P = "distill.partitions"


def shares(*parts: tuple[object, list[str]], micro_batches: int = 4) -> list[str]:
    """Overrides: partitions of a global batch of so many micro-batches of 32."""
    listed = ", ".join(f"{{share: {share}, teachers: [{', '.join(names)}]}}" for share, names in parts)
    return [f"train.global_batch_size={32 * micro_batches}", f"{P}=[{listed}]"]


A, BOTH = NAMES[:1], NAMES


@pytest.mark.parametrize(
    "overrides",
    [
        shares((0.25, A), (0.75, NAMES[1:])),
        shares((0.5, BOTH), (0.5, A)),
        shares((0.5, []), (0.5, A)),
        shares((1, BOTH), micro_batches=1),
        shares((0.333333, A), (0.333333, BOTH), (0.333333, BOTH), micro_batches=3),
    ],
)
def test_partitions_that_fit(overrides):
    assert check(load_spec(EXAMPLE, overrides)) == []


@pytest.mark.parametrize(
    ("overrides", "where", "words"),
    [
        (shares((0.5, A), (0.25, BOTH)), P, "add up to 0.75"),
        (shares((0, A), (1, BOTH)), f"{P}[0].share", "above 0"),
        (shares((-0.5, A), (1.5, BOTH)), f"{P}[0].share|{P}[1].share", "above 0 and at most 1"),
        (shares((".nan", A), (0.5, BOTH)), f"{P}[0].share", "finite"),
        (shares((0.5, ["clip"]), (0.5, A)), f"{P}[0].teachers", NAMES[1]),
        (shares((0.5, []), (0.5, BOTH)), f"{P}[0].teachers", "no teacher sees"),
        (shares((0.3, A), (0.7, BOTH)), f"{P}[0].share|{P}[1].share", "train.global_batch_size=320"),
        (shares((0.3, A), (0.7, BOTH)), f"{P}[0].share|{P}[1].share", "multiples of 1/4"),
        (shares((0.75, A), (0.25, BOTH), micro_batches=6), f"{P}[0].share|{P}[1].share", "train.global_batch_size=256"),
        (shares((0.999999, A), (0.000001, BOTH)), f"{P}[1].share", "not a whole number"),
    ],
)
def test_partitions_that_do_not(overrides, where, words, problems_of):
    found = problems_of(EXAMPLE, overrides)
    assert "|".join(p.where for p in found) == where
    assert words in f"{found[0].message} {found[0].hint}"


def test_partitions_of_no_teachers():
    overrides = ["distill.teacher=[]", *shares((1, A))]
    assert [p.where for p in check(load_spec(EXAMPLE, overrides))] == ["distill.teacher", P]
    labels = load_spec({"dataset": {"num_classes": 3}, "distill": {"partitions": [{"share": 1}]}})
    assert check(labels, "train") == []


def test_a_partition_needs_its_share():
    with pytest.raises(SpecError, match="distill.partitions.0..share"):
        load_spec(EXAMPLE, [f"{P}=[{{teachers: [{NAMES[0]}]}}]"])


def test_no_teacher():
    assert [p.where for p in check(load_spec(EXAMPLE, ["distill.teacher=[]"]))] == ["distill.teacher"]


def test_fine_tuning_needs_classes_and_no_teacher():
    assert [p.where for p in check(load_spec(), "train")] == ["dataset.num_classes"]
    assert check(load_spec({"dataset": {"num_classes": 3}}), "train") == []


def test_several_problems_come_together(problems_of):
    numbers = ["train.num_epochs=0", "dataset.batch_size=0", "train.optim.lr=-1"]
    others = [f"{T}.mode=logits", "train.optim.betas=[0.9]"]
    found = problems_of(EXAMPLE, [*numbers, *others])
    assert {p.where for p in found} == {"train.num_epochs", "dataset.batch_size", "train.optim.lr"}
    assert {p.where for p in problems_of(EXAMPLE, others)} == {f"{T}.loss_type", "train.optim.betas"}


@pytest.mark.parametrize(
    ("policy", "params"),
    [
        ("cosine", {"min_lr": 1e-6}),
        ("linear", {}),
        ("step", {"step_size": 2, "gamma": 0.5}),
        ("multistep", {"milestones": [1, 2.5]}),
    ],
)
def test_policy_parameters(policy, params):
    assert check(load_spec(EXAMPLE, [f"train.optim.policy={policy}", f"train.optim.policy_params={params}"])) == []


def test_policy_parameters_of_the_wrong_kind():
    spec = load_spec(EXAMPLE, ["train.optim.policy=multistep", "train.optim.policy_params={milestones: 3, gamma: x}"])
    assert len(check(spec)) == 2


@pytest.mark.parametrize(
    ("overrides", "wheres"),
    [
        (["train.keep_last=2", "train.keep_every=0"], ["train.keep_every"]),
        (["train.keep_last=2", "train.keep_best=-1", "dataset.knn_validation=true"], ["train.keep_best"]),
        (["train.keep_last=2", "train.keep_best=1"], ["train.keep_best"]),  # nothing measures which is best
        (["train.keep_last=2", "train.keep_best=1", "dataset.knn_validation=true"], []),
        (["train.keep_last=2", "train.keep_best=1", "dataset.num_classes=4"], ["train.keep_best"]),  # on nothing
        (["train.keep_last=2", "train.keep_best=1", "dataset.num_classes=4", "dataset.val_dataset.images_dir=x"], []),
        (["train.checkpoint_dir=here", "results_dir=here"], ["train.checkpoint_dir"]),
        (["train.checkpoint_dir=gs://bucket/kept", "train.keep_last=1"], []),
    ],
)
def test_checkpoints(overrides, wheres, problems_of):
    assert [problem.where for problem in problems_of(EXAMPLE, overrides)] == wheres


def test_the_best_of_a_detector_has_the_best_map():
    asked = ["train.keep_last=2", "train.keep_best=1", "model.task=detection"]
    held_out = "dataset.val_dataset.images_dir=x"
    assert "train.keep_best" in {p.where for p in check(load_spec(EXAMPLE, asked))}
    assert "train.keep_best" not in {p.where for p in check(load_spec(EXAMPLE, [*asked, held_out]))}
