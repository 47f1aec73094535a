"""Against real offline runs of W&B; no network."""

import io
import json
import time

import pytest
from PIL import Image
from wandb_files import artifacts, history, records, run_files

from radioplat.common.redact import MASK
from radioplat.spec.schema.wandb import WandbArtifacts, WandbConfig
from radioplat.tracking.report.curves import draw_curves
from radioplat.tracking.weights_and_biases.artifacts import Product
from radioplat.tracking.weights_and_biases.session import STEP, WandbRun

KEY = "0123456789abcdef0123456789abcdef01234567"


@pytest.fixture(scope="module", autouse=True)
def service():
    """W&B reads its settings once a process: forget what other tests made it read, and what these do."""
    import wandb

    wandb.teardown()
    yield
    wandb.teardown()


@pytest.fixture(autouse=True)
def offline(monkeypatch, tmp_path):
    monkeypatch.setenv("WANDB_MODE", "offline")
    monkeypatch.setenv("WANDB_API_KEY", KEY)
    monkeypatch.setenv("WANDB_BASE_URL", "http://127.0.0.1:9")  # the discard port: nobody answers
    monkeypatch.setenv("NETRC", str(tmp_path / "netrc"))
    for name in ("WANDB_CONFIG_DIR", "WANDB_CACHE_DIR", "WANDB_DATA_DIR"):
        monkeypatch.setenv(name, str(tmp_path / name))


def test_offline_run_holds_what_was_logged_and_no_secret(tmp_path, capfd):
    spec = {"train": {"optim": {"lr": 0.125}}, "encryption_key": "tlt_encode", "note": f"see {KEY}"}
    with WandbRun(WandbConfig(enable=True, project="p", name="n", tags=["t"]), tmp_path, spec) as run:
        assert run and run.dir.name.startswith("offline-run-") and run.dir.parent == tmp_path / "wandb"
        run.log(3, {"loss/clip/summary": 0.25, "lr": 0.5})
        run.log(4, {"loss/clip/summary": 0.125})
    (file,) = run_files(tmp_path)
    assert file.stat().st_size > 0
    rows = history(file)
    assert [(row[STEP], row["loss/clip/summary"]) for row in rows] == [(3, 0.25), (4, 0.125)]
    assert rows[0]["lr"] == 0.5
    saved = {u.key: json.loads(u.value_json) for r in records(file) if r.HasField("run") for u in r.run.config.update}
    assert saved["train"] == {"optim": {"lr": 0.125}} and saved["encryption_key"] == MASK
    assert not [p for p in tmp_path.rglob("*") if p.is_file() and KEY.encode() in p.read_bytes()]
    printed = capfd.readouterr()
    assert KEY not in printed.out + printed.err


def test_resumed_task_goes_on_with_the_same_run(tmp_path):
    config = WandbConfig(enable=True, mode="offline")
    ids = []
    for step in (10, 5):  # the second start resumes from an earlier checkpoint
        with WandbRun(config, tmp_path) as run:
            run.log(step, {"loss": float(step)})
            ids.append(run.id)
        time.sleep(1.1)  # W&B names the folder by the second
    assert ids[0] == ids[1]
    assert [row[STEP] for file in run_files(tmp_path) for row in history(file)] == [10, 5]
    with WandbRun(config, tmp_path, fresh=True) as run:
        assert run.id != ids[0]
    with WandbRun(config, tmp_path, resume_id="chosen01") as run:
        assert run.id == "chosen01"


def test_disabled_writes_nothing(tmp_path):
    with WandbRun(WandbConfig(), tmp_path) as run:
        run.log(1, {"loss": 1.0})
    assert not run and not list(tmp_path.iterdir())


def test_failure_while_logging_is_told_once_and_swallowed(tmp_path, capfd):
    run = WandbRun(WandbConfig(enable=True), tmp_path)
    assert run.dir is not None
    run._run.finish()  # W&B refuses every call from here on
    for step in range(3):
        run.log(step, {"loss": 1.0})
    run.finish()
    assert capfd.readouterr().err.count("wandb: logging failed") == 1


@pytest.mark.parametrize("key", [None, KEY], ids=["no key", "no server"])
def test_without_a_key_or_a_server_this_part_is_kept_offline(tmp_path, monkeypatch, capfd, key):
    monkeypatch.setattr("radioplat.tracking.weights_and_biases.session._INIT_TIMEOUT", 2.0)
    if key is None:
        monkeypatch.delenv("WANDB_API_KEY")
    with WandbRun(WandbConfig(enable=True, mode="online"), tmp_path) as run:
        run.log(1, {"loss": 1.0})
    assert history(run_files(tmp_path)[0])[0]["loss"] == 1.0
    printed = capfd.readouterr()
    assert printed.err.count("wandb: cannot start a run online, so this part of it is stored offline") == 1
    assert KEY not in printed.out + printed.err
    assert run.id == (tmp_path / "wandb_run_id").read_text().strip()  # what a later start goes on with


@pytest.mark.parametrize("how", ["reference", "upload"])
def test_artifacts_show_what_was_made_of_what(tmp_path, how):
    """The student that one run made is the one that the other began with: the same name and digest."""
    student, onnx = tmp_path / "distill" / "model_epoch_000", tmp_path / "export" / "student.onnx"
    student.mkdir(parents=True)
    onnx.parent.mkdir()
    (student / "student.safetensors").write_bytes(b"weights")
    onnx.write_bytes(b"graph")
    config = WandbConfig(enable=True, mode="offline", artifacts=WandbArtifacts(how))
    made = Product(student, "checkpoint", aliases=["step-8"])
    with WandbRun(config, student.parent) as run:
        run.made(made)
    with WandbRun(config, onnx.parent) as run:
        run.used(Product(student, "checkpoint"))
        run.made(Product(onnx, "onnx", [student]))
    ((first,),) = [artifacts(file) for file in run_files(student.parent)]
    ((second, third),) = [artifacts(file) for file in run_files(onnx.parent)]
    assert first[:3] == second[:3] and first[0] == made.name and first[1] == "checkpoint"
    assert (first[3], second[3], third[3]) == (False, True, False)
    assert first[5] == ["student.safetensors"] and third[1] == "onnx" and third[2] != first[2]
    assert third[4]["made_of"] == [str(student)]


def test_a_folder_that_is_logged_prints_nothing(tmp_path, capfd):
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "student.safetensors").write_bytes(b"weights")
    with WandbRun(WandbConfig(enable=True, mode="offline"), tmp_path) as run:
        run.made(Product(tmp_path / "model", "checkpoint"))
    assert len(artifacts(*run_files(tmp_path))) == 1 and capfd.readouterr() == ("", "")


def test_artifacts_may_be_left_out(tmp_path):
    (tmp_path / "student.onnx").write_bytes(b"graph")
    with WandbRun(WandbConfig(enable=True, mode="offline", artifacts=WandbArtifacts.none), tmp_path) as run:
        run.made(Product(tmp_path / "student.onnx", "onnx"))
    (file,) = run_files(tmp_path)
    assert not artifacts(file)


def test_pictures_are_kept(tmp_path):
    drawn = draw_curves("loss", {"total": [(1, 2.0), (2, 1.0)]})
    with WandbRun(WandbConfig(enable=True, mode="offline"), tmp_path) as run:
        run.picture("curves/loss", lambda: drawn, 2)
        run.picture("torn", b"no picture", 2)
        run.log(3, {"loss": 1.0})
    (file,) = run_files(tmp_path)
    rows = history(file)
    assert rows[0][STEP] == 2 and rows[-1]["loss"] == 1.0
    (png,) = file.parent.glob("files/media/images/curves/*.png")
    with Image.open(io.BytesIO(drawn)) as ours, Image.open(png) as theirs:
        assert ours.tobytes() == theirs.tobytes()
