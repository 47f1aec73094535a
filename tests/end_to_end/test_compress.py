"""The chain on a distilled student: killed in the middle and gone on with, changed, and stopped by its gate."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest
import yaml
from forked import Forked, run_script

import radioplat
from benchmarks.judges.lineage import judged
from radioplat.spec.loading.load import load_spec
from radioplat.tasks.compress.compress import GateFailed, compress
from radioplat.tasks.lineage.lineage import lineage
from radioplat.tasks.lineage.node import Kind
from radioplat.tracking.status import read_status

pytestmark = pytest.mark.timeout(240)
ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def spec_file(quiet_run, tmp_path_factory):
    """A chain of five stages from the quiet run's student."""
    results = tmp_path_factory.mktemp("chain")
    spec = yaml.safe_load(Path(quiet_run.file).read_text())
    spec["results_dir"] = str(results)
    spec["feature_cache"] = {"dir": str(results / "answers")}
    spec["prune"] = {"amount": 0.5}
    spec["compress"] = {
        "checkpoint": str(quiet_run.result.checkpoint),
        "stages": ["prune", "retrain", "export", "ptq", "evaluate"],
        "changes": {
            "retrain": ["train.max_steps=6", "train.checkpoint_interval=2", "train.checkpoint_interval_unit=step"]
        },
    }
    path = results / "spec.yaml"
    path.write_text(yaml.safe_dump(spec))
    return path


@pytest.fixture(scope="module")
def killed(spec_file) -> Path:
    """The chain's folder after SIGKILL while it retrains, with two checkpoints or more and not all steps."""
    folder = spec_file.parent / "compress"
    process = Forked(run_script, str(ROOT / "jobs" / "compress.py"), "-e", str(spec_file))
    end = time.monotonic() + 180
    while not list(folder.glob("02_retrain/distill/model_epoch_*")) and process.poll() is None:
        assert time.monotonic() < end
        time.sleep(0.02)
    process.kill()
    assert process.poll() == -signal.SIGKILL, process.output
    return folder


@pytest.fixture(scope="module")
def report(killed, spec_file):
    found = {e["name"]: e for e in json.loads((killed / "compress.json").read_text())["stages"]}
    assert found["01_prune"]["outcome"] and not found["02_retrain"]["outcome"]
    lines: list[str] = []
    return compress(spec_file, say=lines.append), lines


@pytest.mark.proof
def test_its_lineage_leads_through_the_stages_to_the_images_of_both_runs(report, killed, tmp_path):
    made = lineage(killed / "04_ptq" / "quantize" / "model_quantized", out=tmp_path)
    students = [node for node in made.artifact.walk() if node.kind is Kind.student]
    assert [node.facts.get("stage", "") for node in students] == ["04_ptq", "02_retrain", "01_prune", ""]
    retrained = next(node for node in made.artifact.walk() if node.kind is Kind.run)
    assert [each["attempt"] for each in retrained.facts["attempts"]] == [1, 2] and len(made.runs) == 2
    assert judged(tmp_path)["lineage_images_vs_ledger"] == 1.0 and made.is_same
    graph = next((killed / "03_export").rglob("*.onnx"))
    assert lineage(graph).artifact.made_from[0].facts["stage"] == "02_retrain"


@pytest.mark.proof
def test_it_goes_on_where_it_was_killed(report, killed, spec_file):
    done, lines = report
    assert [line for line in lines if line.endswith("is done already")] == [
        "00_start is done already",
        "01_prune is done already",
    ]
    assert any("goes on from model_epoch_" in line for line in lines)
    names = [entry.name for entry in done.entries]
    assert names == ["00_start", "01_prune", "02_retrain", "03_export", "04_ptq", "05_evaluate"]
    start, pruned, retrained, exported, rounded, judged = (entry.outcome for entry in done.entries)
    assert pruned.macs == retrained.macs < 0.8 * start.macs and retrained.facts["steps"] == 6
    assert judged.metrics["fidelity"] == pytest.approx(done.entries[4].metrics["fidelity"], abs=1e-6)
    assert Path(exported.path).stat().st_size == exported.bytes
    models = ["00_start", "01_prune", "02_retrain", "03_export", "04_ptq"]
    assert [row["name"] for row in judged.facts["models"]] == models
    assert rounded.macs == pruned.macs and rounded.facts["quantized"] > 4
    student = radioplat.load_student(done.student).architecture
    assert student.pruned is not None and student.quantized is not None
    assert read_status(killed / "status.json")[-1]["status"] == "SUCCESS"


def test_a_changed_field_begins_what_depends_on_it_anew(report, spec_file):
    lines: list[str] = []
    again = compress(spec_file, ("export.format=safetensors",), say=lines.append)
    done = [line.partition(" ")[0] for line in lines if "is done already" in line]
    assert done == ["00_start", "01_prune", "02_retrain", "04_ptq"]
    assert [line for line in lines if "runs again" in line] == [
        "03_export runs again, changed: export.format: onnx -> safetensors; its old result is in 03_export.before1",
        "05_evaluate runs again, a stage before it changed; its old result is in 05_evaluate.before1",
    ]
    assert again.entries[2].outcome == report[0].entries[2].outcome


def test_the_gate_stops_and_relaxes(report, spec_file):
    """The retrained student is worth something other than the start: a gate just above it fails."""
    kept = report[0].entries[2].kept
    assert 0 < kept and kept != 1
    lines: list[str] = []
    asked = ["compress.gates.min_kept=1", "compress.stages=[prune]", "prune.amount=0.67"]
    before = (spec_file.parent / "compress" / "01_prune" / "experiment.yaml").read_text()
    with pytest.raises(GateFailed, match=r"compress.gates.min_kept: fidelity after 01_prune is .* of the starting"):
        compress(spec_file, asked, say=lines.append)
    relaxed = [*asked, "compress.gates.on_fail=relax", "compress.gates.retries=1"]
    with pytest.raises(GateFailed, match="after 01_prune.relaxed1 .*no retry is left"):
        compress(spec_file, relaxed, say=lines.append)
    assert any("01_prune again, with prune.amount=0.5025" in line for line in lines)
    found = json.loads((spec_file.parent / "compress" / "compress.json").read_text())["stages"]
    by_name = {entry["name"]: entry for entry in found}
    assert by_name["01_prune"]["passed"] is by_name["01_prune.relaxed1"]["passed"] is False
    assert by_name["01_prune.relaxed1"]["outcome"]["macs"] > by_name["01_prune"]["outcome"]["macs"]
    assert before != (spec_file.parent / "compress" / "01_prune" / "experiment.yaml").read_text()
    lower = [*relaxed, "compress.gates.min_kept=0.000001"]
    assert compress(load_spec(spec_file), lower, say=lines.append).entries[-1].passed
