"""Every field of TAO 7.0.1's radio, classification_pyt, DINO and RT-DETR experiments, and what becomes of it here.

``tao_leaves/<experiment>.json`` has a line for each field: its default in TAO, and one of

- ``used``: it is a field here, too;
- ``moved to <field>``: its value is that of another field here;
- ``without effect: <reason>``: a start prints the reason;
- ``only this``: another value is refused, as it would change the result;
- ``unset``: the default means that nothing is given.
"""

from __future__ import annotations

import copy
import json
import os
from pathlib import Path
from typing import Any

import pytest

from radioplat.errors import SpecError
from radioplat.spec.loading.load import changed_fields, load_spec
from tests.helpers.tao_configuration import leaves

FOLDER = Path(__file__).with_name("tao_leaves")
TABLES = {path.stem: json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))}
LEAVES = [pytest.param(name, path, id=f"{name}:{path}") for name, table in TABLES.items() for path in table]
REQUIRED = "???"
DETECTORS = ("dino", "rtdetr")
PACKAGES = {"radio": "nvidia_tao_pytorch/multimodal/radio/config"}  # the others: nvidia_tao_pytorch/config/<name>
# A value in place of a default that is unset or required, and another one where `other` makes none.
SOURCE = {"image_dir": "images", "json_file": "boxes.json"}
BINDING = {"teacher_module_name": "a", "student_module_name": "a", "criterion": "L2", "weight": 2.0}
VALUES: dict[str, Any] = {
    "gen_trt_engine.tensorrt.calibration.cal_image_dir": ["images"],
    "dataset.augmentation.multi_scales": [{224: 0.1}, {256: 0.2}, {288: 0.3}, {320: 0.4}],
    "dataset.augmentation.fixed_random_crop": 512,
    "dataset.infer_data_sources": {"image_dir": ["images"]},
    "dataset.eval_class_ids": [1],
    **{f"dataset.{split}_data_sources": SOURCE for split in ("train", "val", "test", "quant_calibration")},
    **{f"dataset.{split}_dataset.native_resolution_filter": {"min_area": 1} for split in ("train", "val", "test")},
    "dataset.quant_calibration_dataset.native_resolution_filter": {"min_area": 1},
    "distill.bindings": [BINDING],
    "distill.teacher": {"backbone": {"type": "resnet_34"}},
    **dict.fromkeys(("dataset.val_img_size", "dataset.val_batch_size", "dataset.knn_max_train_batches"), 32),
    "distill.vitdet.num_global": 2,
    "distill.vitdet.num_windowed": 2,
}
OTHERS: dict[str, Any] = {
    "distill.teacher": {"backbone": {"type": "resnet_50"}},
    "distill.bindings": [],
    "dataset.augmentation.random_color.hue": 0.25,
    "model.backbone": "resnet_34",
    "distill.teacher.backbone": "resnet_34",
    "train.optim.optimizer": "SGD",
    "train.optim.lr_scheduler": "StepLR",
    "train.optim.policy_params": {"min_lr": 0.1},
}
FLAT = {"backbone": "resnet_50"}


def base(name: str, path: str) -> dict:
    """Return a spec of the experiment, with what a field at ``path`` needs beside it."""
    tree: dict = {"model_name": name, "model": dict(FLAT)} if name in DETECTORS else {}
    if path.startswith(("distill.", "model.load_teacher", "model.distillation")) and path != "distill.teacher":
        tree["distill"] = {"teacher": dict(FLAT) if name in DETECTORS else {"backbone": {"type": "resnet_34"}}}
    if path == "model.distillation_loss_coef":
        tree["distill"]["bindings"] = [dict(BINDING)]
    if path == "train.optim.lr_step_size":
        tree["train"] = {"optim": {"lr_scheduler": "StepLR"}}
    return tree


def loaded(name: str, path: str, value: Any):
    tree = base(name, path)
    *sections, last = path.split(".")
    inner = tree
    for section in sections:
        inner = inner.setdefault(section, {})
    inner[last] = copy.deepcopy(value)
    return load_spec(tree)


def given(name: str, path: str) -> Any:
    """Return the default, or a value in its place."""
    default = name if path == "model_name" else TABLES[name][path][0]
    if default in (None, REQUIRED) or isinstance(default, list) and default and isinstance(default[0], dict):
        return VALUES.get(path, "x")
    return default


def other(path: str, value: Any) -> Any:
    """Return another value of the same kind."""
    if path in OTHERS:
        return OTHERS[path]
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 32
    if isinstance(value, float):
        return value / 2 or 0.5
    if isinstance(value, list):
        return [other("", each) for each in value] or ["another"]
    if isinstance(value, dict):
        return {key: other("", each) for key, each in value.items()} or {"another": 1}
    return "another"


def at(spec: Any, path: str) -> Any:
    """Return the value of a field of a loaded spec; names of enumerations."""
    for part in path.split("."):
        part, _, index = part.partition("[")
        if part.isdigit() or isinstance(spec, dict):
            spec = spec.get(part)
        else:
            spec = getattr(spec, part, None)
        spec = spec[int(index[:-1])] if index else spec
    return getattr(spec, "name", spec)


def notes(spec: Any, path: str) -> list[str]:
    return [why for noted, why in spec.without_effect.items() if path == noted or path.startswith(f"{noted}.")]


@pytest.mark.parametrize(("name", "path"), LEAVES)
def test_what_becomes_of_a_field(name, path):
    (default, outcome), value = TABLES[name][path], given(name, path)
    if default is None and path != "model_name":
        unset, without = (changed_fields(spec) for spec in (loaded(name, path, None), load_spec(base(name, path))))
        assert unset | {"without_effect": None} == without | {"without_effect": None}
    kind, _, reason = outcome.partition(": ")
    if kind == "only this":
        assert not notes(loaded(name, path, default), path)
        with pytest.raises(SpecError) as caught:
            loaded(name, path, other(path, value))
        assert [problem.where for problem in caught.value.problems] == [path]
        return
    spec = loaded(name, path, value)
    assert notes(spec, path) == ([reason] if kind == "without effect" else [])
    for ours in kind.removeprefix("moved to ").split(" and ") if kind.startswith("moved to ") else ():
        assert at(spec, ours) != at(loaded(name, path, other(path, value)), ours)
    if kind == "used" and value not in ("", -1):  # with which TAO leaves a field to itself
        found = at(spec, path)
        assert found == value or str(found).lower() == str(value).lower() or path.endswith(NESTED)
        if isinstance(value, (bool, int, float)):
            assert at(loaded(name, path, other(path, value)), path) == other(path, value)


NESTED = ("policy_params", "native_resolution_filter", "bindings")  # a section here, or one that loses parts


@pytest.mark.skipif("TAO_CHECKOUT" not in os.environ, reason="it names a work tree of NVIDIA-TAO/tao-pytorch")
@pytest.mark.parametrize("name", TABLES)
def test_the_tables_have_the_leaves_of_taos_configuration(name):
    package = Path(os.environ["TAO_CHECKOUT"]) / PACKAGES.get(name, f"nvidia_tao_pytorch/config/{name}")
    found = json.loads(json.dumps(leaves(package / "default_config.py", "ExperimentConfig")))
    assert found == {path: default for path, (default, _) in TABLES[name].items()}
