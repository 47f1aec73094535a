"""A sweep of eight QAT trials against as many runs on their own: the time of the teachers, and of everything.

``python -m benchmarks.sweep [--trials 8] [--lone 2] [--folder DIR]``. A student of the quickstart is distilled from its
two teachers on its corpora, and quantized and trained on by each trial (``SPACE`` below; the views are deterministic).
The sweep's trials share one pool of teachers, one shard index and one feature cache, which the first trial fills; the
time to fill it counts. It is killed with SIGKILL once half of the trials are done, and goes on by the same command.
Then the first ``--lone`` trials' specs run as ``radioplat quantize`` runs them, each with an empty cache of its own, as
the trials do: two at a time, a core each. Their mean stands for all eight. The trials' judgement is in neither. With
``--folder`` what is there is not done again.

The last line is one JSON object: ``teacher_time_ratio`` and ``wall_ratio``, the sweep's seconds (all starts, with the
start of Ray) over those of as many lone runs, two at a time.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import mean

import psutil
import yaml

from benchmarks.folder import kept_or_scratch
from radioplat.common import terminal
from radioplat.quickstart.defaults import RADIO_VIT as SPEC
from radioplat.quickstart.defaults import ROOT, TEACHERS, ensure_images
from radioplat.spec.loading.load import to_yaml
from radioplat.tasks.tune.sweep import Plan, trial_spec
from radioplat.tasks.tune.trial_record import State, TrialRecord, read_trials
from radioplat.tracking.results import write_atomic
from radioplat.tracking.teacher_cost import TeacherCosts

AT_ONCE = 2  # trials, and lone runs; a core each
BASE_STEPS, STEPS, STEPS_PER_EPOCH = 100, 60, 125  # of 16 images


def space(trials: int) -> dict:
    """What the trials try."""
    floats = [{"module_name": "*mlp*", "weights": {"dtype": "native"}, "activations": {"dtype": "native"}}]
    return {
        "task": "quantize",
        "changes": ["quantize.mode=qat", f"quantize.qat.max_steps={STEPS}", "quantize.calibration_batches=4"],
        "parameters": {
            "quantize.qat.lr": {"loguniform": [3e-5, 1e-3]},
            "quantize.algorithm": {"choice": ["minmax", "percentile", "mse"]},
            "quantize.per_channel": {"choice": [True, False]},
            "quantize.layers": {"choice": [[], [{"module_name": "*mlp*", "weights": {"dtype": "int4"}}], floats]},
            "quantize.default_layer_dtype": {"choice": ["int8"]},  # of the best one in full, too
        },
        "objectives": [{"metric": "fidelity", "mode": "max"}, {"metric": "bytes", "mode": "min"}],
        "search": {"algorithm": "optuna"},
        "budget": {"trials": trials},
        "concurrent": AT_ONCE,
    }


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description="What a sweep shares; see the head of the file.")
    parser.add_argument("--trials", type=int, default=8)
    parser.add_argument("--lone", type=int, default=2, help="trials that are run on their own, too")
    parser.add_argument("--folder", type=Path, help="keep everything here, and go on from what is here")
    given = parser.parse_args()
    with kept_or_scratch(given.folder, "sweep") as folder:
        student = _student(folder)
        wall = _sweep(folder, student, given.trials)
        trials = read_trials(folder / "sweep" / "tune")
        with ThreadPoolExecutor(AT_ONCE) as threads:
            lone = list(threads.map(lambda record: _alone(folder, record), trials[: given.lone]))
    for run in lone:
        terminal.say(f"a lone run: {run['wall']:.1f} s, teachers {run['teachers']:.1f} s")
    teachers, count = sum(record.teacher_seconds for record in trials), len(trials)
    theirs = count * mean(run["teachers"] for run in lone)
    their_wall = count * mean(run["wall"] for run in lone) / AT_ONCE
    terminal.say(
        f"the sweep: {count} trials in {wall:.0f} s, teachers {teachers:.1f} s; {count} lone runs, {AT_ONCE} at a "
        f"time, at the mean of {len(lone)}: {their_wall:.0f} s, teachers {theirs:.1f} s"
    )
    figures = {"teacher_time_ratio": teachers / theirs, "wall_ratio": wall / their_wall}
    print(json.dumps({name: round(value, 4) for name, value in figures.items()}))


def _student(folder: Path) -> Path:
    """The student that is quantized; distilled once."""
    from radioplat.tasks.distill.distill import distill

    ensure_images([f"results_dir={folder / 'inputs'}"])
    epochs = -(-BASE_STEPS // STEPS_PER_EPOCH)
    steps = [
        f"train.max_steps={BASE_STEPS}",
        f"train.num_epochs={epochs}",
        f"feature_cache.dir={folder / 'base_answers'}",
    ]
    return distill(SPEC, [*_common(folder), f"results_dir={folder / 'base'}", *steps], say=_quiet).checkpoint


def _common(folder: Path) -> list[str]:
    inputs = folder / "inputs"
    train = [inputs / "corpora" / name for name in ("photographs", "labelled")]
    return [
        *(f"dataset.train_dataset.tar_data_sources[{i}].root_dir={path}" for i, path in enumerate(train)),
        f"dataset.val_dataset.tar_data_sources[0].root_dir={inputs / 'corpora' / 'held_out'}",
        *(
            f"distill.teacher[{i}].pretrained_teacher_model_path={inputs / 'weights' / name}.safetensors"
            for i, name in enumerate(TEACHERS)
        ),
        # Less than a core would make a teacher of a pool give way to the student, and its clock run meanwhile.
        *(f"teachers.{name}.num_cpus=1" for name in ("lite0", "lite2")),
        "cluster.mode=local",
        "train.num_gpus=1",
        "train.zero_stage=0",
        "train.precision=fp32",
        "dataset.batch_size=16",
        "train.checkpoint_interval=20",
        "train.checkpoint_interval_unit=step",
        "train.validation_interval=100",
        "evaluate.max_images=200",
    ]


def _sweep(folder: Path, student: Path, trials: int) -> float:
    """The sweep, killed in the middle and gone on with; gives the seconds of both starts."""
    file, home = folder / "space.yaml", folder / "sweep" / "tune"
    file.write_text(yaml.safe_dump(space(trials)))
    command = [sys.executable, str(ROOT / "jobs" / "sweep.py"), "-e", str(SPEC), "--space", str(file), *_common(folder)]
    command += [f"results_dir={folder / 'sweep'}", f"quantize.checkpoint={student}"]
    command += [f"feature_cache.dir={folder / 'answers'}"]
    clock, known = folder / "wall.json", 0.0
    if clock.exists():
        known = json.loads(clock.read_text())
    begin = time.monotonic()
    if not _done(home) and trials > 2:
        with subprocess.Popen(command, env=_environment()) as process:
            while len(_done(home)) < trials // 2 and process.poll() is None:
                time.sleep(0.2)
            _kill(process.pid)
        left = [record for record in read_trials(home) if record.state is State.running]
        terminal.note(f"killed with SIGKILL: {len(_done(home))} trials are done, {len(left)} begun")
    before = {record.number: record for record in _done(home)}
    subprocess.run(command, env=_environment(), check=True)
    known += 0.0 if len(before) == trials else time.monotonic() - begin
    write_atomic(clock, json.dumps(known))
    again = [n for n, record in before.items() if read_trials(home)[n].starts != record.starts]
    terminal.say(f"computed again after the kill: {again or 'nothing'} of {len(before)} trials that were done")
    return known


def _done(home: Path) -> list[TrialRecord]:
    return [record for record in read_trials(home) if record.state is State.done]


def _alone(folder: Path, record: TrialRecord) -> dict[str, float]:
    """What a trial's own spec takes without the others: no pool, an index and an empty cache of its own."""
    home = folder / "lone" / record.name
    done = home / "figures.json"
    if done.exists():
        return json.loads(done.read_text())
    home.mkdir(parents=True, exist_ok=True)
    spec = trial_spec(Plan.read(folder / "sweep" / "tune"), record)
    spec.results_dir, spec.dataset.index_dir, spec.feature_cache.dir = str(home), None, str(home / "answers")
    for service in spec.teachers.values():
        service.pool = None
    file = home / "spec.yaml"
    file.write_text(to_yaml(spec))
    begin = time.monotonic()
    command = [sys.executable, "-m", "radioplat.cli", "quantize", "-e", str(file)]
    environment = _environment() | {"OMP_NUM_THREADS": "1"}  # as a trial has
    subprocess.run(command, env=environment, check=True, stdout=subprocess.DEVNULL)
    costs = TeacherCosts.read(home / "qat")
    assert costs is not None
    found = {"wall": time.monotonic() - begin, "teachers": sum(cost.seconds for cost in costs.teachers.values())}
    write_atomic(done, json.dumps(found))
    return found


def _environment() -> dict[str, str]:
    before = os.environ.get("PYTHONPATH")
    return os.environ | {"PYTHONPATH": f"{ROOT}:{before}" if before else str(ROOT)}


def _kill(pid: int) -> None:
    """A process and all that it started, as when a machine is lost."""
    with contextlib.suppress(psutil.NoSuchProcess):
        for member in [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)]:
            with contextlib.suppress(psutil.NoSuchProcess):
                member.send_signal(signal.SIGKILL)


def _quiet(line: str) -> None:
    if "starts fresh" in line or "goes on" in line:
        terminal.note(line)


if __name__ == "__main__":
    main()
