"""``radioplat migrate lightly``: a spec for a distillation by LightlyTrain (``lightly_train.pretrain``)."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

from radioplat.errors import SpecError
from radioplat.spec.loading.load import dump, load_spec
from radioplat.spec.loading.plain_tree import put
from radioplat.tasks.migrate.lightly_call import LightlyCall, read_call
from radioplat.tasks.migrate.lightly_models import find_model
from radioplat.tasks.migrate.written_spec import WrittenSpec

# Method: LightlyTrain's default teacher, and what is learned from it.
_METHODS: dict[str, tuple[str, dict[str, str], str]] = {
    "distillation": ("dinov3/vitb16", {"mode": "combo"}, "queue"),
    "distillationv3": ("dinov3/vitb16", {"mode": "combo"}, "queue"),
    "distillationv2": ("dinov2/vitb14-noreg", {"mode": "spatial", "loss_type": "MSE"}, "blocks"),
    "distillationv1": ("dinov2/vitb14-noreg", {"mode": "summary"}, "queue"),
}
_LOSSES = {
    "queue": "LightlyTrain compares similarities to a queue of the teacher's features, and mixes images; here the "
    "student learns the features themselves, by the losses of distill.teacher, of single images",
    "blocks": "LightlyTrain's target is the last two blocks of the teacher, of mixed images; here it is the last one, "
    "of single images",
}
_PRECISIONS = {"16": "fp16", "bf16": "bf16", "32": "fp32"}
# Arguments without effect, and why.
_NO_EFFECT = {
    "resume_interrupted": "the same command continues a run from its newest checkpoint",
    "resume": "the same command continues a run from its newest checkpoint",
    "overwrite": "a run never overwrites another: it continues, or names what changed",
    "accelerator": "GPUs are used where there are some",
    "strategy": "train.engine and train.zero_stage choose how the student is divided",
    "callbacks": "train.checkpoint_interval, train.keep_last and train.hooks are for this",
    "trainer_args": "there is no PyTorch Lightning here; see section train",
    "loader_args": "there is no torch DataLoader here; see dataset.workers and dataset.prefetch_batches",
    "embed_dim": "a student has the width of its backbone; heads bring it to the teacher's",
    "float32_matmul_precision": "train.tf32 is true or false",
}
_OPTIMIZER = "adamw with radioplat's defaults; set train.optim"


class _Migration:
    """A translation in progress: arguments are taken one by one, and what is left at the end is reported."""

    def __init__(self, call: LightlyCall) -> None:
        self.rest = copy.deepcopy(call.arguments)
        self.spec: dict[str, Any] = {}
        self.notes = {
            name: f"its value is not a literal of the script ({text}); set it by hand"
            for name, text in call.unreadable.items()
        }

    def take(self, name: str, default: Any = None) -> Any:  # noqa: ANN401
        """Remove an argument and return its value, or ``default`` if it is absent or ``auto``."""
        value = self.rest.pop(name, default)
        return default if value in (None, "auto") else value

    def put(self, path: str, value: Any) -> None:  # noqa: ANN401
        """Set a field of the spec; None sets nothing."""
        if value is not None:
            put(self.spec, path, value)

    def note(self, name: str, reason: str) -> None:
        """Report an argument; the first reason stays."""
        self.notes.setdefault(name, reason)

    def section(self, name: str) -> dict[str, Any]:
        """Remove an argument that is a mapping, and return it; anything else is reported."""
        return self.mapping(name, self.take(name, {}))

    def mapping(self, name: str, value: Any) -> dict[str, Any]:  # noqa: ANN401
        """Return a value that is a mapping; anything else is reported."""
        if isinstance(value, dict):
            return value
        self.note(name, f"a mapping is expected, not {value!r}")
        return {}

    def number(self, name: str, default: int) -> int:
        """Remove an argument that is a whole number, and return it; anything else is reported."""
        return self.whole(name, self.take(name, default), default)

    def whole(self, name: str, value: Any, default: int) -> int:  # noqa: ANN401
        """Return a value that is a whole number; anything else is reported."""
        try:
            return int(value)
        except (TypeError, ValueError):
            self.note(name, f"a whole number is expected, not {value!r}")
            return default

    def leave(self, name: str, section: dict[str, Any], reason: str) -> None:
        """Report each field that is left in a mapping."""
        for key in section:
            self.note(f"{name}.{key}", reason)


def migrate_lightly(words: Sequence[str]) -> WrittenSpec:
    """Return the spec that does what a call of ``lightly_train.pretrain`` does, and what it does otherwise.

    Args:
        words: a script, a YAML or JSON file of arguments, or arguments as ``name=value``.

    Raises:
        SpecError: there is no such call, or its method has no teacher.
    """
    work = _Migration(read_call(words))
    method = str(work.take("method", "distillation"))
    if method not in _METHODS:
        hint = f"Methods with a teacher: {', '.join(_METHODS)}."
        raise SpecError(f"{method} learns without a teacher, and radioplat has no such task", where="method", hint=hint)
    _places(work)
    _student(work)
    _teacher(work, method)
    _length_and_size(work)
    _optimizer(work)
    _transforms(work)
    _loggers(work)
    for name in list(work.rest):
        if name in _NO_EFFECT and work.rest[name] in (None, False, "auto"):
            del work.rest[name]  # its default
    for name, value in work.rest.items():
        work.note(name, _NO_EFFECT.get(name) or f"radioplat knows no such argument of LightlyTrain ({value!r})")
    load_spec(copy.deepcopy(work.spec))  # what is printed can be read
    return WrittenSpec(dump(work.spec), work.notes)


def _places(work: _Migration) -> None:
    if out := work.take("out"):
        work.put("results_dir", str(out))
    data = work.take("data")
    if isinstance(data, (list, tuple)):
        first, *others = map(str, data)
        work.put("dataset.train_dataset.images_dir", first)
        if others:
            reason = "a split has one folder of images: move or link the others below it, or pack all into shards"
            work.note("data", f"{reason} ({', '.join(others)})")
    elif data:
        work.put("dataset.train_dataset.images_dir", str(data))


def _student(work: _Migration) -> None:
    name = work.take("model")
    if name is not None:
        model = find_model(str(name))
        if model is None:
            work.note("model", f"timm has no {name}; set model.backbone.type to a model of timm's or radioplat's")
        else:
            work.put("model.backbone.type", model.type)
            if model.pretrained:
                work.put("model.backbone.pretrained_backbone_path", f"timm:{model.type}")
    if arguments := work.section("model_args"):
        if arguments.pop("pretrained", False):
            work.note("model_args.pretrained", "name the weights in model.backbone.pretrained_backbone_path")
        if arguments.pop("weights", None):
            work.note("model_args.weights", "name the weights in model.backbone.pretrained_backbone_path")
        work.put("model.backbone.kwargs", arguments or None)
    if checkpoint := work.take("checkpoint"):
        reason = f"a checkpoint of PyTorch Lightning ({checkpoint}): export its model, and name the file in "
        work.note("checkpoint", reason + "model.backbone.pretrained_backbone_path")
    activation = work.section("activation_checkpoint_args")
    if activation.pop("enabled", False):
        work.put("train.grad_checkpointing", True)
    work.leave("activation_checkpoint_args", activation, "all blocks are computed again, or none")


def _teacher(work: _Migration, method: str) -> None:
    default, learned, loss = _METHODS[method]
    arguments = work.section("method_args")
    name, weights = arguments.pop("teacher", default), arguments.pop("teacher_weights", None)
    teacher: dict[str, Any] = {}
    model = find_model(str(name))
    if model is None:
        work.note(
            "method_args.teacher", f"timm has no {name}; set distill.teacher[0].model.backbone.type, and its weights"
        )
    else:
        teacher["model"] = {"backbone": {"type": model.type}}
    if weights:
        teacher["pretrained_teacher_model_path"] = str(weights)
    elif model is not None:
        teacher["pretrained_teacher_model_path"] = f"timm:{model.type}"
    if options := arguments.pop("teacher_args", None):
        teacher.setdefault("model", {}).setdefault("backbone", {})["kwargs"] = options
    weight = arguments.pop("loss_local_weight", None)
    if weight is not None and learned["mode"] == "combo":
        teacher["fd_loss_weight"] = weight
    elif weight is not None:
        work.note("method_args.loss_local_weight", f"{method} has no such loss")
    work.put("distill.teacher", [teacher | learned])
    work.note(f"method={method}", _LOSSES[loss])
    work.leave("method_args", arguments, "radioplat's losses have no such setting; see distill.teacher")


def _length_and_size(work: _Migration) -> None:
    epochs = work.take("epochs")
    if epochs is None:
        work.note("epochs", "LightlyTrain chooses it by the number of images; here train.num_epochs is 10 unless set")
    else:
        work.put("train.num_epochs", epochs)
    devices, nodes = work.take("devices"), work.number("num_nodes", 1)
    if isinstance(devices, str):
        devices = (
            [part for part in devices.split(",") if part.strip()]
            if "," in devices
            else work.whole("devices", devices, 1)
        )
    if isinstance(devices, list) or devices == -1:
        work.note("devices", "train.num_gpus is a number; the cluster, or CUDA_VISIBLE_DEVICES, chooses the devices")
    count = len(devices) if isinstance(devices, list) else devices if devices and devices > 0 else None
    if devices is None:
        work.note("devices", "LightlyTrain takes all GPUs of the machine; here train.num_gpus is 1 unless set")
    work.put("train.num_gpus", count)
    work.put("train.num_nodes", nodes if nodes > 1 else None)
    workers = (count or 1) * nodes
    batch, steps = work.number("batch_size", 128), work.number("gradient_accumulation_steps", 1)
    work.put("dataset.batch_size", max(1, batch // workers))
    work.put("train.global_batch_size", max(1, batch // workers) * workers * steps)
    if batch % workers:
        work.note("batch_size", f"{batch} is not divided by {workers} workers; rounded down")
    work.put("dataset.workers", work.take("num_workers"))
    work.put("train.seed", work.take("seed", 0))
    precision = str(work.take("precision", ""))
    if precision:
        kind = _PRECISIONS.get(precision.partition("-")[0])
        work.put("train.precision", kind)
        if kind is None:
            work.note("precision", f"there is no {precision}; train.precision is auto, fp32, fp16 or bf16")


def _optimizer(work: _Migration) -> None:
    name, arguments = str(work.take("optim", "auto")), work.section("optim_args")
    if name not in ("adamw", "sgd"):
        reason = _OPTIMIZER if name == "auto" else f"there is no {name} here; {_OPTIMIZER}"
        work.note("optim", reason)
        work.leave("optim_args", arguments, f"of LightlyTrain's {name}; {_OPTIMIZER}")
        return
    work.put("train.optim.optim", name)
    for field in ("lr", "weight_decay", "momentum"):
        work.put(f"train.optim.{field}", arguments.pop(field, None))
    betas = arguments.pop("betas", None)
    work.put("train.optim.betas", list(betas) if betas else None)
    if "lr" in work.spec.get("train", {}).get("optim", {}):
        work.note("optim_args.lr", "LightlyTrain multiplies it by sqrt(batch size / 1536); here it is the rate itself")
    work.leave("optim_args", arguments, f"train.optim has no such setting of {name}")


def _transforms(work: _Migration) -> None:
    """Translate ``transform_args``; LightlyTrain's own defaults, without it, are reported."""
    given, path = "transform_args" in work.rest, "dataset.augmentation"
    arguments = work.section("transform_args")
    if not given:
        work.note(
            "transform_args", "LightlyTrain's default crops, colours and blur are others; see dataset.augmentation"
        )
    size = arguments.pop("image_size", None)
    if size is not None:
        sides = [size] if isinstance(size, int) else list(size)
        work.put("dataset.img_size", sides[0])
        if len(set(sides)) > 1:
            work.note("transform_args.image_size", f"views are squares; {sides[0]} pixels a side")
    if "random_resize" in arguments:
        crop = arguments.pop("random_resize")
        if crop is None:
            work.put(f"{path}.random_crop.enable", False)
        else:
            crop = work.mapping("transform_args.random_resize", crop)
            scale = [crop.pop("min_scale", 0.14), crop.pop("max_scale", 1.0)]
            work.put(f"{path}.random_crop.scale_range", scale)
            work.leave("transform_args.random_resize", crop, "see dataset.augmentation.random_crop")
    if "random_flip" in arguments:
        flip = arguments.pop("random_flip")
        if flip is None:
            work.put(f"{path}.random_flip.enable", False)
        else:
            flip = work.mapping("transform_args.random_flip", flip)
            for key, field in (
                ("horizontal_prob", "hflip_probability"),
                ("horizonal_prob", "hflip_probability"),
                ("vertical_prob", "vflip_probability"),
            ):
                work.put(f"{path}.random_flip.{field}", flip.pop(key, None))
            work.leave("transform_args.random_flip", flip, "see dataset.augmentation.random_flip")
    normalize = work.mapping("transform_args.normalize", arguments.pop("normalize", None) or {})
    for key in ("mean", "std"):
        value = normalize.pop(key, None)
        work.put(f"{path}.{key}", list(value) if value else None)
    work.leave("transform_args.normalize", normalize, "see dataset.augmentation.mean and std")
    work.leave("transform_args", arguments, "this augmentation is another one here; see dataset.augmentation")


def _loggers(work: _Migration) -> None:
    given = work.section("loggers")
    trackers = [] if "tensorboard" in given and given["tensorboard"] is None else ["tensorboard"]
    board = work.mapping("loggers.tensorboard", given.pop("tensorboard", None) or {})
    work.leave("loggers.tensorboard", board, "event files are in the task's folder")
    if (settings := given.pop("wandb", None)) is not None:
        trackers.append("wandb")
        settings = work.mapping("loggers.wandb", settings)
        for key, field in (("project", "project"), ("name", "name"), ("entity", "entity"), ("id", "id")):
            work.put(f"wandb.{field}", settings.pop(key, None))
        if settings.pop("offline", False):
            work.put("wandb.mode", "offline")
        work.leave("loggers.wandb", settings, "section wandb has no such setting")
    given.pop("jsonl", None)  # status.json has the same lines
    work.put("train.trackers", trackers)
    work.leave(
        "loggers", {name: each for name, each in given.items() if each is not None}, "there is no such tracker here"
    )
