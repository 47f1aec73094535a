"""The code of docs/define/extend.md, run as printed: a user's own loss, teacher, metric and step hook in one run."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest
import safetensors.torch
import yaml

from radioplat.spec.loading.load import load_spec
from radioplat.tasks.evaluate.evaluate import evaluate
from radioplat.tracking.status import read_status

PAGE = Path(__file__).parents[2] / "docs" / "define" / "extend.md"
BLOCK = re.compile(r"^```(python|yaml)\n# (\S+)\n(.*?)^```$", re.M | re.S)


@pytest.fixture
def blocks(tmp_path, monkeypatch) -> dict[str, dict]:
    """The page's YAML blocks by their first line; its Python blocks are files on the path."""
    found = {}
    for language, name, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        if language == "yaml":
            found[name] = yaml.safe_load(text)
        else:
            assert len([line for line in text.splitlines() if line.strip()]) <= 20, f"{name} is no short example"
            (tmp_path / name).write_text(text)
    modules = [path.stem for path in tmp_path.glob("my_*.py")]
    assert sorted(found) == ["hook", "loss", "metric", "teacher"] and len(modules) == 4
    monkeypatch.syspath_prepend(tmp_path)
    yield found
    for module in modules:
        sys.modules.pop(module, None)


@pytest.mark.proof
def test_the_code_of_the_page_runs_as_printed(blocks, make_spec, distil, weights, tmp_path):
    tensors = safetensors.torch.load_file(weights["lite0"])
    own = {f"net.{name}": value for name, value in tensors.items() if not name.startswith("classifier.")}
    safetensors.torch.save_file(own, tmp_path / "own.safetensors")
    spec = make_spec(tmp_path / "results")
    teacher = spec["distill"]["teacher"][0]
    teacher |= blocks["teacher"]["distill"]["teacher"][0]
    teacher |= blocks["loss"]["distill"]["teacher"][0]
    teacher |= {"mode": "summary", "pretrained_teacher_model_path": str(tmp_path / "own.safetensors")}
    spec["train"] |= blocks["hook"]["train"]
    spec["evaluate"] = {**spec.get("evaluate", {}), **blocks["metric"]["evaluate"]}

    run = distil(spec, "train.max_steps=2")
    status = run.folder / "status.json"
    lines = [line["kpi"] for line in read_status(status) if "distance_from_start" in line["kpi"]]
    first, last = (line["distance_from_start"] for line in lines)
    assert 0 < first < last
    assert all(line[f"loss/{teacher['name']}/summary"] > 0 for line in lines)

    distil(spec, "train.max_steps=3")  # goes on: the distance is still that from the first start
    (third,) = [line["kpi"] for line in read_status(status) if line.get("step") == 3 and line["kpi"]]
    assert third["distance_from_start"] > first

    (tmp_path / "spec.yaml").write_text(yaml.safe_dump(spec))
    evaluate(load_spec(tmp_path / "spec.yaml"))
    results = json.loads((tmp_path / "results" / "evaluate" / "results.json").read_text())
    assert 1 <= results["metrics"]["student"]["EffectiveRank"] <= 12
