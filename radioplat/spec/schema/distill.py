"""Spec section ``distill``: the teachers, the losses against them, and the student's heads."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from radioplat.spec.import_paths import NameOrImportPath
from radioplat.spec.ranges import number
from radioplat.spec.schema.model import ModelConfig

MISSING: Any = "???"  # omegaconf's mark of a field without a default; the schema itself needs no omegaconf


class LossType(NameOrImportPath):
    """Distillation losses (formulas in docs/define/losses.md), or the user's own as ``package.module:function``.

    TAO has those up to ``BALANCED``, and ``IOU``.
    """

    KL = "KL"
    CE = "CE"
    L1 = "L1"
    L2 = "L2"
    MSE = "MSE"
    FD = "FD"
    CS = "CS"
    BALANCED = "BALANCED"
    smooth_l1 = "smooth_l1"
    dampened_mse = "dampened_mse"
    gram = "gram"
    channel_kl = "channel_kl"
    attention = "attention"
    rkd_distance = "rkd_distance"
    rkd_angle = "rkd_angle"
    similarity = "similarity"
    angle = "angle"
    tangent_sphere = "tangent_sphere"
    phi_s = "phi_s"  # for bindings between detectors
    IOU = "IOU"  # for bindings between detectors


class Mode(str, Enum):
    """Teacher output that is distilled; ``auto`` chooses it by the loss, or else by the student's classes."""

    auto = "auto"
    logits = "logits"
    summary = "summary"
    spatial = "spatial"
    combo = "combo"


class SummaryLoss(str, Enum):
    """The summary term of ``combo``."""

    CE = "CE"
    angle = "angle"
    cosine = "cosine"
    tangent_sphere = "tangent_sphere"
    balanced = "balanced"
    similarity = "similarity"


class SpatialLoss(str, Enum):
    """Loss between feature maps, with TAO's names of ``spatial_loss_type``."""

    mse = "mse"
    dampened_mse = "dampened_mse"
    balanced = "balanced"
    cosine = "cosine"
    gram = "gram"
    channel_kl = "channel_kl"
    attention = "attention"
    similarity = "similarity"


class KLForm(str, Enum):
    """Formula of the Kullback-Leibler divergence."""

    tao = "tao"  # mean over elements at temperature 1
    hinton = "hinton"  # batchmean, times T^2


class LabelForm(str, Enum):
    """Formula that combines label loss and distillation; see ``radioplat.losses.terms.hard_labels``."""

    alpha = "alpha"  # alpha * CE + (1 - alpha) * distillation
    tao = "tao"  # (1 - sum of loss_lambda) * CE + distillation


class BindingForm(str, Enum):
    """Comparison of detectors by bindings; see ``radioplat.objectives.detector_bindings``.

    ``matched``: queries are matched one to one, class scores are sigmoids, and IOU weights a position by its best
    query. ``tao``: the i-th query with the i-th, KL by softmax, and IOU weights a position by the sum over queries.
    """

    matched = "matched"
    tao = "tao"


class Balance(str, Enum):
    """Weighting of teachers in addition to ``loss_lambda``; see ``radioplat.losses.weighting.balance``."""

    fixed = "fixed"
    loss_scale = "loss_scale"
    adaloss = "adaloss"


class Kind(str, Enum):
    """Teacher output that a loss term compares."""

    summary = "summary"
    spatial = "spatial"
    logits = "logits"


class Scheme(str, Enum):
    """Distillation scheme: fixed teachers, teachers trained along, or the student as its own teacher."""

    offline = "offline"
    online = "online"
    self = "self"
    reverse = "reverse"


class Source(str, Enum):
    """Source of a teacher: trained weights, the student's EMA, its deeper layers, or a network trained along."""

    weights = "weights"
    ema = "ema"
    deeper = "deeper"
    peer = "peer"


class AverageView(str, Enum):
    """Input of the student's EMA: the student's own view, or another crop of the image."""

    same = "same"
    shifted = "shifted"


@dataclass
class ExtraLossConfig:
    """(+) A loss term in addition to those of ``mode``; ``weight`` is its factor in the teacher's sum."""

    type: LossType = MISSING
    kind: Kind = MISSING
    weight: float = number(1.0, at_least=0)  # factor in the sum of the teacher's terms


@dataclass
class ViTDetConfig:
    """Windowed attention during training, with probability ``prob``."""

    prob: float = number(0.0, at_least=0, at_most=1)  # probability of windows in a micro-batch
    # sides in patches to draw from, among those that divide the map; empty: 6 to 32
    window_sizes: list[int] = number(list, at_least=2)
    # number of blocks that attend to the whole map; unset: 4, or half of them; more if it does not divide the
    # depth
    num_global: int | None = number(None, at_least=1)
    num_windowed: int | None = number(None, at_least=1)  # windowed blocks before each global one, instead of num_global


@dataclass
class BindingConfig:
    """A loss between the outputs of two named modules; ``weight`` is its only factor."""

    teacher_module_name: str = MISSING  # name of the teacher's module
    student_module_name: str = MISSING  # name of the student's module
    criterion: LossType = MISSING  # loss between the two outputs
    weight: float = number(1.0, at_least=0)  # factor of the loss
    teacher: str | None = None  # (+) the teacher's name; unset: the only teacher


class TargetNormType(str, Enum):
    """Transform of a teacher's features before a loss compares them."""

    none = "none"
    standardize = "standardize"
    standardize_channels = "standardize_channels"
    phi_s = "phi_s"
    zca = "zca"
    pca = "pca"
    tao_phi_s = "tao_phi_s"
    layer_norm = "layer_norm"


class TargetNormFit(str, Enum):
    """When a teacher's feature statistics are measured."""

    before = "before"
    running = "running"
    with_step = "with_step"


class SpatialNormType(str, Enum):
    """TAO's names for transforms of a feature map."""

    phi = "phi"
    zca = "zca"
    pca = "pca"


@dataclass
class TargetNormConfig:
    """(+) Transform of teachers' features (``radioplat.losses.target_transforms.phi_s``, ``whitening``).

    Heads still output raw features. ``standardize`` has one scale for all dimensions, ``standardize_channels`` one
    for each; ``layer_norm`` normalises each vector by itself, measures nothing, and heads output normalised features;
    ``tao_phi_s`` is PHI-S with TAO's eigenvectors and sample covariance. ``fit: before`` measures over ``fit_batches``
    global batches before the first step and then freezes; ``running`` measures the targets during training and updates
    the transform after the first step and every ``refresh_steps`` steps, until step ``freeze_after``; ``with_step`` is
    TAO's: a step's own targets count before its losses, the mean is updated in each step, and the matrix in the first
    and every ``refresh_steps`` steps. With ``both_sides`` heads compute raw features, which the losses compare after
    the same transform; else heads compute transformed features.
    """

    type: TargetNormType = TargetNormType.none
    fit: TargetNormFit = TargetNormFit.before
    fit_batches: int = number(100, at_least=1)  # global batches that the statistics are measured over, with fit: before
    # steps between updates of the transform, with fit: running or with_step
    refresh_steps: int = number(100, at_least=1)
    # the step from which the transform stays, with fit: running or with_step
    freeze_after: int = number(3000, at_least=1)
    path: str | None = None  # statistics file: read if it exists, else written after measuring
    both_sides: bool = False  # transform the student's features, too, instead of teaching the head transformed ones


@dataclass
class HeadFitConfig:
    """(+) Fit heads that have random weights to the teachers' features by ridge regression, before the first step.

    ``enabled`` unset: if the backbone starts from pretrained weights, whose features a random head would undo.
    ``images`` unset: four rows (images, or positions of maps) for each dimension of a head's input, but at most a
    tenth of the images of the run. They are the run's first images, and are trained on afterwards.
    """

    enabled: bool | None = None  # fit them; unset: if the backbone starts from pretrained weights
    # images to fit on; unset: as many as a regression of that width needs, at most a tenth of the run's
    images: int | None = number(None, at_least=1)


@dataclass
class PartitionConfig:
    """(+) A share of every global batch, in whole micro-batches, and the names of its teachers."""

    share: float = number(MISSING, above=0, at_most=1 + 1e-6, hint="All add up to 1.")  # of each global batch
    teachers: list[str] = field(default_factory=list)  # names of the teachers that see this share
    # side in pixels of the student's view in this partition; unset: dataset.img_size
    img_size: int | None = number(None, at_least=1, at_most=65_536)
    # instead of img_size, sizes to draw from for each micro-batch: {size: probability}, or a list as multi_scales
    sizes: Any = number(None, at_least=0)


@dataclass
class StageConfig:
    """(+) One of several consecutive parts of the run: its optimizer steps, and the settings that differ in it."""

    steps: int = number(MISSING, at_least=1)  # optimizer steps of this part
    img_size: int | None = number(None, at_least=1, at_most=65_536)  # student's view; unset: dataset.img_size
    teachers: list[str] = field(default_factory=list)  # teachers of this stage; empty: all
    # the schedule, with its warm-up, restarts at each stage; unset: train.optim.lr
    lr: float | None = number(None, above=0)


class StudentPlacement(str, Enum):
    """Workers of several students."""

    together = "together"  # every worker trains all students, one after another
    spread = "spread"  # each student has workers of its own, for students that do not fit on a GPU together


@dataclass
class StudentConfig:
    """(+) One student of several: its name, and the fields of the spec that it has for itself."""

    name: str = MISSING  # name of its folder, results_dir/students/<name>, and in every table
    # side in pixels of its own view; the teachers' views stay; unset: dataset.img_size
    img_size: int | None = number(None, at_least=1, at_most=65_536)
    model: dict[str, Any] = field(default_factory=dict)  # fields of section model
    train: dict[str, Any] = field(default_factory=dict)  # fields of section train: optim, precision, enable_ema, ...
    distill: dict[str, Any] = field(default_factory=dict)  # fields of section distill: losses, heads, ...


@dataclass
class MesaConfig:
    """(+) MESA: compare the student's map with that of its moving average on another crop, both layer-normalised."""

    weight: float = number(0.0, at_least=0)  # factor of this loss; 0: none
    start_step: int = number(0, at_least=0)  # first global step with this loss
    view: AverageView = AverageView.shifted


@dataclass
class TeacherConfig:
    """One teacher; an unset field takes the value of the same field of ``distill``."""

    name: str | None = None  # (+) name in section teachers and in every table; default: from the backbone's type
    source: Source = Source.weights  # (+) see distill.scheme
    view: AverageView = AverageView.same  # (+) for source: ema
    model: ModelConfig = field(default_factory=ModelConfig)  # the teacher's backbone
    pretrained_teacher_model_path: str | None = (
        None  # file or folder of the teacher's weights, or the address of fetched ones
    )
    # (+) several weight files of one backbone; the target is the mean of their features
    ensemble: list[str] = field(default_factory=list)
    loss_type: LossType | None = None
    loss_lambda: float | None = number(None, at_least=0)  # factor of this teacher's losses
    mode: Mode | None = None
    # side in pixels of the teacher's view; unset: by match_student_resolution
    input_size: int | None = number(None, at_least=1, at_most=65_536)
    # TAO's field: the teacher's patch in pixels; only compared with the backbone's
    patch_size: int | None = number(None, at_least=1)
    # the teacher's view has the student's grid; unset: true, or false where input_size is given
    match_student_resolution: bool | None = None
    upsample_factor: int = number(1, at_least=1)  # 2 or 4 with an adaptor
    # sizes that micro-batches are drawn in, {size: probability}; they apply to all teachers that follow the
    # student's size
    stochastic_resolutions: dict[int, float] = number(dict, at_least=0)
    # mean of each channel, of values in [0, 1]; unset: dataset.augmentation.mean, else ImageNet's
    norm_mean: list[float] = number(list)
    norm_std: list[float] = number(list, above=0)  # standard deviation of each channel; unset: as norm_mean
    summary_loss_weight: float = number(1.0, at_least=0)  # factor of the summary's loss, with mode: combo
    fd_loss_weight: float = number(1.0, at_least=0)  # factor of the feature map's loss, with mode: combo
    # (+) loss of the summary, with mode: combo; unset: balanced and similarity
    summary_loss_type: SummaryLoss | None = None
    spatial_loss_type: SpatialLoss | None = None  # loss of the feature map, with mode: combo; unset: loss_type
    # 0: all positions weigh the same; 1: weights follow the teacher's saliency alone
    spatial_focal_weight: float = number(0.0, at_least=0, at_most=1)
    # exponent of the teacher's saliency in the weights of positions
    spatial_focal_gamma: float = number(1.0, at_least=0)
    # greatest weight of a position
    spatial_focal_max_weight: float = number(
        4.0, at_least=1, also=(0,), hint="1 is the mean over all positions; 0: no limit."
    )
    extra_losses: list[ExtraLossConfig] = field(default_factory=list)  # (+)
    # index of the student's class token that the head reads; default: a token of its own
    summary_token_idx: int | None = number(None, at_least=0)
    # (+) false: the student's features are compared with this teacher's as they are, so that they can replace it; the
    # widths must be equal
    use_head: bool = True
    # form of the head for the feature map: v2, an MLP; or attn, with two ViT blocks first
    spatial_mlp_version: str = "v2"
    # residual blocks of the head for the feature map; unset: distill.mlp_num_inner, with spatial_mlp_version:
    # attn none
    spatial_num_inner: int | None = number(None, at_least=0, at_most=100)
    # (+) factor by which the spatial head's map is finer than the student's map (pixel shuffle)
    fd_upsample_factor: int = number(1, at_least=1, at_most=16)
    spatial_norm_type: SpatialNormType | None = None  # transform of the feature map; unset: target_norm.type
    summary_norm_type: TargetNormType | None = None  # (+) transform of the summary; unset: target_norm.type
    adaptor: str | None = None  # featsharp: upsample the teacher's map by upsample_factor
    upsampler_checkpoint: str | None = None  # file written by `train_upsampler`
    do_upsample: bool = True  # TAO's field; false: the adaptor has no effect
    # (+) k: the teacher gets k x k of the student's images tiled into one image of input_size
    mosaic: int = number(1, at_least=1, at_most=64)


@dataclass
class DistillConfig:
    """Spec section ``distill``."""

    teacher: list[TeacherConfig] = field(default_factory=list)  # the teachers
    scheme: Scheme = Scheme.offline  # (+)
    mesa: MesaConfig = field(default_factory=MesaConfig)  # (+)
    # (+) the loss against each teacher; unset: KL for class scores, BALANCED and similarity for features
    loss_type: LossType | None = None
    loss_lambda: float = number(0.5, at_least=0)  # factor of each teacher's losses
    kl_form: KLForm = KLForm.tao  # (+)
    temperature: float = number(1.0, above=0)  # (+) for KL with kl_form: hinton
    # (+) weight of cross-entropy with labels; images without a label have only distillation losses
    alpha: float = number(0.0, at_least=0, at_most=1)
    label_form: LabelForm = LabelForm.alpha  # (+)
    balance: Balance = Balance.fixed  # (+)
    # (+) divide the sum of the teachers' losses by their number, as TAO does
    mean_over_teachers: bool = False
    # (+) factor of the sum of the teachers' losses; TAO's classification has 100
    loss_scale: float = number(1.0, above=0)
    # (+) UNIC's teacher dropping: probability per image of dropping each teacher except the one with the highest loss
    teacher_drop_prob: float = number(0.0, at_least=0, at_most=1)
    # what is taught; auto: by loss_type; without one class scores for a student with classes, else combo
    mode: Mode = Mode.auto
    # heads with a hidden layer; unset: linear heads, unless other fields describe hidden layers
    use_mlp: bool | None = None
    # width of the heads' hidden layers
    mlp_hidden_size: int = number(1024, at_least=1, hint="For a single linear layer set distill.use_mlp: false.")
    mlp_num_inner: int = number(0, at_least=0, at_most=100)  # residual blocks between a head's first and last layer
    vitdet: ViTDetConfig = field(default_factory=ViTDetConfig)  # windowed attention during training, for the RADIO ViT
    # losses between named modules of the teacher and the student
    bindings: list[BindingConfig] = field(default_factory=list)
    # (+) with model.task: detection: factor of the detector's own losses next to the bindings, and whether its decoder
    # and its encoder start from the (first) teacher's weights; of the encoder, those of equal shape
    box_loss_weight: float = number(1.0, at_least=0)
    decoder_from_teacher: bool = False  # the detector's decoder starts from the first teacher's weights
    # the detector's encoder starts from the first teacher's weights, where shapes are equal
    encoder_from_teacher: bool = False
    binding_form: BindingForm = BindingForm.matched  # (+) with model.task: detection
    results_dir: str | None = None  # folder of this task; default: results_dir/distill
    target_norm: TargetNormConfig = field(default_factory=TargetNormConfig)  # (+)
    head_fit: HeadFitConfig = field(default_factory=HeadFitConfig)  # (+)
    # (+) which teachers see which share of every global batch; a teacher in none of them sees everything
    partitions: list[PartitionConfig] = field(default_factory=list)
    stages: list[StageConfig] = field(default_factory=list)  # (+) in this order; together they are the whole run
    # (+) several students that learn from one pass of the teachers; empty: one, that of section model
    students: list[StudentConfig] = field(default_factory=list)
    # (+) of several students: spread gives each workers of its own, with one stream and the same teachers for all
    placement: StudentPlacement = StudentPlacement.together
    then: list[str] = field(default_factory=list)  # (+) tasks to run afterwards on the trained student, in this order
