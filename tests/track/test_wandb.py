"""Against real offline runs of W&B; no network."""

import json
import struct
import time

import pytest

from radioplat.spec.wandb import WandbConfig
from radioplat.track.redact import MASK
from radioplat.track.wandb import STEP, WandbRun

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


def records(path):
    """Records of a .wandb file: LevelDB's log format (blocks of 32 KiB, header crc32, length, type) of protobufs."""
    from wandb.proto.wandb_internal_pb2 import Record

    data, at, parts = path.read_bytes(), 7, []
    assert data[:4] == b":W&B"
    while at + 7 <= len(data):
        room = 32768 - at % 32768
        if room < 7:
            at += room
            continue
        _, length, kind = struct.unpack("<IHB", data[at : at + 7])
        if at + 7 + length > len(data):
            return  # still being written
        parts.append(data[at + 7 : at + 7 + length])
        at += 7 + length
        if kind in (1, 4):  # a full record, or the last part of one
            record = Record()
            record.ParseFromString(b"".join(parts))
            parts = []
            yield record


def history(run_file):
    return [
        {item.key or "/".join(item.nested_key): json.loads(item.value_json) for item in record.history.item}
        for record in records(run_file)
        if record.HasField("history")
    ]


def run_files(folder):
    """The offline run files, once each holds its last record: W&B's process writes on after ``finish`` returned."""
    files = sorted(folder.glob("wandb/offline-run-*/*.wandb"))
    until = time.monotonic() + 30
    while not all(any(record.HasField("exit") for record in records(file)) for file in files):
        assert time.monotonic() < until, "W&B did not close the run file"
        time.sleep(0.05)
    return files


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
    run._run.finish()  # W&B refuses every call from here on
    for step in range(3):
        run.log(step, {"loss": 1.0})
    run.finish()
    assert capfd.readouterr().err.count("wandb: logging failed") == 1


@pytest.mark.parametrize("key", [None, KEY], ids=["no key", "no server"])
def test_without_a_key_or_a_server_this_part_is_kept_offline(tmp_path, monkeypatch, capfd, key):
    monkeypatch.setattr("radioplat.track.wandb._INIT_TIMEOUT", 2.0)
    if key is None:
        monkeypatch.delenv("WANDB_API_KEY")
    with WandbRun(WandbConfig(enable=True, mode="online"), tmp_path) as run:
        run.log(1, {"loss": 1.0})
    assert history(run_files(tmp_path)[0])[0]["loss"] == 1.0
    printed = capfd.readouterr()
    assert printed.err.count("wandb: cannot start a run online, so this part of it is kept offline") == 1
    assert KEY not in printed.out + printed.err
    assert run.id == (tmp_path / "wandb_run_id").read_text().strip()  # what a later start goes on with
