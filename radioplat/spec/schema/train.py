"""Spec section ``train``: the size of the run, precision, optimizer and schedule."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from radioplat.spec.ranges import SECONDS, number


class Precision(str, Enum):
    """Number format of the student's forward and backward passes.

    ``auto``: bf16 if all workers have GPUs that multiply it (compute capability 8.0 or higher), else fp32; a run keeps
    what its first start chose.
    """

    auto = "auto"
    fp32 = "fp32"
    fp16 = "fp16"
    bf16 = "bf16"


class EngineName(str, Enum):
    """The engine that computes gradients and updates on all workers."""

    deepspeed = "deepspeed"  # ZeRO, offload, all number formats
    ddp = "ddp"  # every worker has all weights and optimizer states; fp32 and bf16


class Dealing(str, Enum):
    """Assignment of the micro-batches of a step to workers.

    - ``cost``: by their sizes and the speed of each worker, so that no worker waits long for another.
    - ``even``: number j goes to worker j modulo their number.
    """

    cost = "cost"
    even = "even"


class Reduction(str, Enum):
    """Order of the additions over micro-batches and workers."""

    fast = "fast"  # in the order in which they come: rounding depends on the number of workers
    exact = "exact"  # so that weights are the same, bit for bit, at any number of workers


class Policy(str, Enum):
    """Learning-rate schedule after the warm-up."""

    linear = "linear"
    step = "step"
    cosine = "cosine"
    multistep = "multistep"
    soft_start_annealing = "soft_start_annealing"


class OptimizerName(str, Enum):
    """The update rule."""

    adamw = "adamw"
    adam = "adam"
    sgd = "sgd"
    lamb = "lamb"
    fusedlamb = "fusedlamb"


class IntervalUnit(str, Enum):
    """Unit of ``checkpoint_interval``."""

    epoch = "epoch"
    step = "step"


class NonFinitePolicy(str, Enum):
    """Reaction of all ranks to a step in which a loss term is not finite."""

    skip_step = "skip_step"
    quarantine_teacher = "quarantine_teacher"
    fail = "fail"


class SpikeAction(str, Enum):
    """Reaction of all ranks to a step whose loss jumps."""

    none = "none"
    skip_step = "skip_step"
    rollback = "rollback"


@dataclass
class SpikeConfig:
    """(+) Loss spikes: a loss above ``factor`` times the median of the last ``window`` accepted steps."""

    action: SpikeAction = SpikeAction.none
    factor: float = number(3.0, above=1)  # a loss above so many times the median is a spike
    window: int = number(50, at_least=2, at_most=1000)  # accepted steps of the median
    max_rollbacks: int = number(3, at_least=0)  # returns to a checkpoint after which the run ends


DEFAULT_LR = 6e-5


@dataclass
class OptimConfig:
    """Optimizer and learning-rate schedule; the schedule is a function of the global step alone."""

    optim: OptimizerName = OptimizerName.adamw  # the update rule
    # (+) learning rate; unset: for a taught student by what it starts from, else 6e-5, as in TAO
    lr: float | None = number(None, above=0)
    policy: Policy = Policy.linear  # learning-rate schedule after the warm-up
    # step: {step_size, gamma} in epochs; multistep: {milestones, gamma} in epochs; cosine, linear: {min_lr};
    # soft_start_annealing: {soft_start, annealing, min_lr}, the first two as shares of the run
    policy_params: dict[str, Any] = field(default_factory=dict)
    momentum: float = number(0.9, at_least=0)  # momentum of sgd
    weight_decay: float = number(0.01, at_least=0)  # none for biases, norms, tokens and position tables
    betas: list[float] = number(lambda: [0.9, 0.999], at_least=0, below=1)  # of adam, adamw and lamb
    skip_names: list[str] = field(default_factory=list)  # parts of parameter names without weight decay
    # (+) epochs of linear warm-up; unset: a twentieth of the run for a taught student from random weights, else none
    warmup_epochs: float | None = number(None, at_least=0)
    sched_on_updates: bool = True  # change the learning rate at each step; false: between epochs only
    # (+) learning rate of heads and classifiers; default: lr
    projector_lr: float | None = number(None, above=0)
    # (+) epochs at the beginning in which the backbone is frozen and only the heads are trained; unset: none, unless
    # the backbone is pretrained and its heads start from random weights
    head_warmup_epochs: float | None = number(None, at_least=0)
    # (+) factors on the learning rate by a pattern of parameter names; the first match applies
    lr_mults: dict[str, float] = number(dict, at_least=0)
    # (+) learning rate of each backbone block as a factor of the next block's
    layer_decay: float = number(1.0, above=0, at_most=1)

    @property
    def rate(self) -> float:
        """``lr``, or its default."""
        return DEFAULT_LR if self.lr is None else self.lr

    @property
    def warm_up(self) -> float:
        """``warmup_epochs``, or none."""
        return self.warmup_epochs or 0.0


@dataclass
class RegularizerConfig:
    """(+) A penalty on the weights, added to the loss."""

    type: str | None = None  # L1: of magnitudes; L2: of squares; unset: no penalty
    weight: float = number(0.0, at_least=0)  # factor of the penalty

    @property
    def power(self) -> int | None:
        """1 for L1, 2 for L2, None for no type or an unknown one."""
        return {"l1": 1, "l2": 2}.get((self.type or "").lower())


@dataclass
class CudnnConfig:
    """cuDNN switches; both concern convolutions on GPUs alone."""

    benchmark: bool = False  # try all algorithms for each new shape
    deterministic: bool = False  # only algorithms that give the same bits each time; TAO: true


class Tracker(str, Enum):
    """Where the figures of a run go, besides its own status.json."""

    wandb = "wandb"  # Weights & Biases, as section wandb says
    tensorboard = "tensorboard"  # event files in the task's folder


@dataclass
class TensorboardConfig:
    """TAO's section of TensorBoard."""

    enabled: bool = False  # TAO's switch of train.trackers: tensorboard


@dataclass
class TrainConfig:
    """Spec section ``train``."""

    num_gpus: int = number(1, at_least=1)  # training workers on each node; CPU workers where there is no GPU
    # TAO's field: as many ids as num_gpus; the cluster chooses the devices
    gpu_ids: list[int] = number(list, at_least=0)
    num_nodes: int = number(1, at_least=1)  # nodes with training workers
    # seed of weights and dropout; crops and flips have that of dataset.train_dataset
    seed: int = number(1234, at_least=0)
    regularizer: RegularizerConfig = field(default_factory=RegularizerConfig)
    cudnn: CudnnConfig = field(default_factory=CudnnConfig)
    # length of the run; an epoch of sources has the largest steps_per_epoch, else all images once
    num_epochs: int = number(10, at_least=1)
    checkpoint_interval: int = number(1, at_least=1)  # epochs or steps between checkpoints
    checkpoint_interval_unit: IntervalUnit = IntervalUnit.epoch
    # (+) also save a checkpoint when the last one is so old. Unset: never; 5 on spot nodes
    checkpoint_minutes: float | None = number(None, above=0, at_most=SECONDS)
    # (+) true: a thread writes checkpoints while training continues; false: training waits for each write
    async_checkpoint: bool = True
    # (+) checkpoints to keep: the newest n (unset: all; 3 on spot nodes), the n with the best score, one every n steps
    keep_last: int | None = number(None, at_least=1)
    keep_best: int = number(0, at_least=0)  # checkpoints with the best validation score to keep, besides the newest
    keep_every: int | None = number(None, at_least=1)  # keep one checkpoint every so many steps, besides the newest
    # (+) copy checkpoints to `<checkpoint_dir>/<task>/` too: a folder, s3://... or gs://...
    checkpoint_dir: str | None = None
    # (+) consecutive failed saves after which the run ends
    max_checkpoint_failures: int = number(3, at_least=0)
    validation_interval: int = number(1, at_least=1)  # epochs between validations
    # the checkpoint to continue from where results_dir has none yet
    resume_training_checkpoint_path: str | None = None
    pretrained_model_path: str | None = None  # checkpoint whose weights, heads included, the student starts from
    # (+) true: pretrained weights that do not fit, or parameters without any, are an error instead of a warning
    pretrained_strict: bool = False
    precision: Precision = Precision.auto
    # (+) compute what is fp32 on GPUs as TF32: factors with 10 bits of fraction, sums in fp32. Unset: true, unless the
    # run began without it
    tf32: bool | None = None
    # largest norm of the gradients of all parameters together
    clip_grad_norm: float = number(2.0, at_least=0, hint="0: no clipping.")
    enable_ema: bool = False  # also keep a moving average of the weights, which checkpoints contain
    # decay of the moving average at each step; unset: by the length of the run, over about a tenth of its steps
    ema_decay: float | None = number(None, at_least=0, below=1, hint="0.998 averages over some 500 steps.")
    # (+) trackers of the run and of tasks with its student. Unset: by TAO's switches, wandb.enable and
    # train.tensorboard.enabled; both are off by default
    trackers: list[Tracker] | None = None
    tensorboard: TensorboardConfig = field(default_factory=TensorboardConfig)
    optim: OptimConfig = field(default_factory=OptimConfig)
    # (+) samples per optimizer step at any world size; default: batch_size * num_gpus * num_nodes
    global_batch_size: int | None = number(None, at_least=1)
    # (+) the run continues with any number of workers in these bounds; default of both: num_gpus * num_nodes
    min_workers: int | None = number(None, at_least=1)
    max_workers: int | None = number(None, at_least=1)  # most workers; default: num_gpus * num_nodes
    # (+) seconds after a start before the run pauses to add workers for which the cluster has free resources
    resize_interval_s: float = number(60.0, at_least=0, at_most=SECONDS)
    # (+) ddp: for a student whose weights and optimizer states fit each worker
    engine: EngineName = EngineName.deepspeed
    # (+) how gradients, losses and statistics are added up over micro-batches and workers. Unset: fast, unless the run
    # began with exact
    reduction: Reduction | None = None
    # (+) threads in which each worker and each teacher computes on a CPU. Unset: a share of the machine's cores; with
    # reduction exact 1, since sums inside a micro-batch depend on it, unless the run began with more
    threads: int | None = number(None, at_least=1, at_most=1024)
    # (+) which worker gets which micro-batch of a step: in turn, or by what each costs
    dealing: Dealing = Dealing.cost
    # DeepSpeed's ZeRO stage: what is divided among workers, 1 optimizer states, 2 gradients, 3 weights
    zero_stage: int = number(0, at_least=0, at_most=3)
    offload: bool = False  # keep optimizer states in host memory
    grad_checkpointing: bool = False  # compute activations again in the backward pass, to save memory
    compile: bool = False  # run student and losses through torch.compile
    max_steps: int | None = number(None, at_least=1)  # end after so many optimizer steps, if num_epochs would take more
    # (+) DAMP: standard deviation of the multiplicative noise on the student's weights during training
    damp: float = number(0.0, at_least=0, at_most=1)
    # (+) accept a sample order that differs from the checkpoint's, and start at its beginning
    restart_order: bool = False
    # (+) go on from a checkpoint with other teachers: heads and class tokens of new ones begin anew, those of removed
    # ones are left out, everything else stays
    allow_teacher_change: bool = False
    # (+) move checkpoints that this version cannot read aside, and start without them
    restart: bool = False
    non_finite: NonFinitePolicy = NonFinitePolicy.skip_step
    # (+) consecutive non-finite steps after which the run ends
    max_non_finite_steps: int = number(20, at_least=1)
    spike: SpikeConfig = field(default_factory=SpikeConfig)
    # (+) seconds without progress (not waiting for data or a teacher) after which a worker is killed
    hang_timeout_s: float = number(600.0, above=0, at_most=SECONDS, hint="600 finds a hang in ten minutes.")
    # (+) the user's own step hooks, as package.module:Class, see radioplat.training.hooks.step_hook
    hooks: list[str] = field(default_factory=list)
    # (+) steps between lines of status.json and W&B
    log_interval: int = number(1, at_least=1)
    # (+) consecutive restarts of the worker group without a new checkpoint, after which the run ends. Unset: 3; 10 on
    # spot nodes
    max_failures: int | None = number(None, at_least=-1)

    @property
    def most_failures(self) -> int:
        """``max_failures``, or its default."""
        return 3 if self.max_failures is None else self.max_failures
