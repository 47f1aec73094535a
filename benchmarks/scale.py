"""What the control plane of many workers costs, without GPUs; which placement of teachers wins, by a model.

``python -m benchmarks.scale [--workers 8 64 256]``. Each number of workers has a Ray cluster of its own on this
machine: a head and four raylets with fake GPUs. The workers do what training workers do beside training: slices of the
order, requests to a pool of teachers that answer zeros, ledger rows, and on rank 0 status lines and checkpoints of tiny
tensors; a step of the student is a sleep. What they wrote is then compared with the order. Ray Data is measured apart
(:mod:`benchmarks.scale_stream`): micro-batches for so many ranks, as fast as they come. The last line is one JSON
object; ``cost_per_step_ms_N`` is CPU time per worker and step, Ray's threads of its process included;
``stream_restarts`` is of the largest number of workers.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path

import numpy as np

from benchmarks.scale_network import GIB, LARGE, PLACEMENTS, Cluster, Cost, best, costs
from benchmarks.scale_workers import AHEAD, Host, Plan, order_of, sources
from radioplat.common import terminal

NODES, REPLICAS = 4, 4  # raylets beside the head's; replicas of the teacher
TOGETHER, PROCESSES = 8, 8  # logical workers a process, more of them where there would be more processes than these
STEPS, PATIENCE_S = 10, 240.0
PACE = 16  # workers whose steps this machine keeps up with in a second: the simulated step is that much longer
PARTS = ("order", "checksum", "ask", "answer", "ledger")
KINDS = {"gcs_server": "GCS", "raylet/raylet": "raylets", "ray::Host": "workers", "ray::Replica": "replicas",
         "ray::PoolController": "controller"}  # fmt: skip
SIZES = (8, 64, 512)
# Steps of the stream: of the largest number of workers, whose executions are counted, and of the others.
STREAM_STEPS, SHORT_STREAM_STEPS = 2000, 200
DECODERS = 4  # decode tasks at a time


def main() -> None:
    """Measure, model, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--workers", type=int, nargs="+", default=[8, 64, 256])
    parser.add_argument("--steps", type=int, default=STEPS)
    parser.add_argument("--step-seconds", type=float, help=f"of the simulated student; default: 1, or workers / {PACE}")
    parser.add_argument("--stream-steps", type=int, default=STREAM_STEPS, help="of the largest number of workers")
    parser.add_argument("--only", choices=("control", "stream"), help="one of the two measurements")
    parser.add_argument("--one", type=int, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if min(given.workers) < 2 or min(given.steps, given.stream_steps) < 1:
        parser.error("at least two workers, and one step")
    if given.one and given.only == "stream":
        print(json.dumps(simulate_stream(given.one, given.stream_steps)))
        return
    if given.one:
        print(json.dumps(simulate(given.one, given.steps, given.step_seconds or max(1.0, given.one / PACE))))
        return
    result: dict[str, float | str] = {}
    if given.only != "stream":
        step_seconds = ["--step-seconds", str(given.step_seconds)] if given.step_seconds else []
        found = {world: _apart(world, "control", "--steps", str(given.steps), *step_seconds) for world in given.workers}
        show(found)
        for world, of in found.items():
            result |= {
                f"order_us_per_step_{world}": round(of["order_ms"] * 1e3, 1),
                f"cost_per_step_ms_{world}": round(of["worker_ms"], 2),
                f"memory_mb_per_worker_{world}": round(of["memory_workers"] / (world - 1), 1),
            }
        result |= network()
    if given.only != "control":
        largest, streams = max(given.workers), {}
        for world in given.workers:
            steps = given.stream_steps if world == largest else min(SHORT_STREAM_STEPS, given.stream_steps)
            streams[world] = _apart(world, "stream", "--stream-steps", str(steps))
        show_streams(streams)
        result |= {f"stream_steps_s_{world}": round(of["steps_s"], 2) for world, of in streams.items()}
        result |= {"stream_steps": streams[largest]["steps"], "stream_restarts": streams[largest]["restarts"]}
    print(json.dumps(result))


def _apart(world: int, only: str, *arguments: str) -> dict[str, float]:
    """Return what one measurement prints in a process of its own.

    Raises:
        RuntimeError: it failed.
    """
    command = [sys.executable, "-m", "benchmarks.scale", "--one", str(world), "--only", only, *arguments]
    ended = subprocess.run(command, capture_output=True, text=True)
    if ended.returncode:
        raise RuntimeError(f"{world} workers failed:\n{ended.stderr[-4000:]}")
    found: dict[str, float] = json.loads(ended.stdout.splitlines()[-1])
    print(f"{world} workers: {found}", file=sys.stderr, flush=True)
    return found


def simulate_stream(world: int, steps: int) -> dict[str, float]:
    """See :func:`benchmarks.scale_stream.stream`; with a cluster of its own."""
    import ray

    from benchmarks.scale_stream import stream
    from clusters.local import LocalCluster

    _set_environment()
    with (
        tempfile.TemporaryDirectory(prefix="scale") as scratch,
        LocalCluster(0, DECODERS) as cluster,
    ):
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        return stream(world, steps, Path(scratch))


def _set_environment() -> None:
    """Set what the processes of a cluster inherit: one thread each, and where this package is."""
    os.environ |= {"OMP_NUM_THREADS": "1", "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0"}
    os.environ["PYTHONPATH"] = os.pathsep.join([str(Path(__file__).parents[1]), os.environ.get("PYTHONPATH", "")])


def simulate(world: int, steps: int, seconds: float) -> dict[str, float]:
    """One run; milliseconds are of CPU per worker and step unless their names say otherwise, memory is in MB (PSS)."""
    import ray

    from clusters.local import WORKER_RESOURCE, LocalCluster
    from radioplat.teachers.serving.remote_teacher import await_pool, start_pool, stop_pool

    together = max(TOGETHER, math.ceil((world - 1) / PROCESSES))
    groups = [[0], *(list(range(at, min(at + together, world))) for at in range(1, world, together))]
    _set_environment()
    places = math.ceil(len(groups) / NODES)
    fake = float(places * together)
    with (
        tempfile.TemporaryDirectory(prefix="scale") as scratch,
        LocalCluster(NODES, REPLICAS, places=places, gpus=fake) as cluster,
    ):
        ray.init(address=cluster.address, log_to_driver=False, logging_level="error")
        plan = Plan(f"{scratch}/run", world, steps, seconds)
        pool = start_pool(still_teacher(Path(scratch), plan), (plan.grid, plan.grid), 0)
        await_pool(pool)
        hosts = [
            ray.remote(Host)
            .options(num_cpus=0, num_gpus=len(ranks), resources={WORKER_RESOURCE: 1})
            .remote(plan, ranks, [pool])
            for ranks in groups
        ]
        ray.get([host.ready.remote() for host in hosts], timeout=PATIENCE_S)
        before = cpu_of(processes())
        begin = time.time() + 2.0
        limit = PATIENCE_S + (steps + AHEAD) * seconds
        answers = ray.get([host.run.remote(begin) for host in hosts], timeout=limit)
        ran, after, memory = time.time() - begin, cpu_of(processes()), memory_of(processes())
        books = [book for of_host, _ in answers for book in of_host]
        nodes = len({node["NodeID"] for node in ray.nodes() if node["Alive"]})
        found = judge(plan)
        stop_pool(pool)
    each = world * steps
    parts = {f"{part}_ms": 1e3 * sum(b.cpu[part] for b in books) / each for part in PARTS}
    first = {f"{part}_ms": 1e3 * books[0].cpu[part] / steps for part in ("status", "checkpoint")}
    around = {f"{kind}_ms": 1e3 * (after[kind] - before[kind]) / each for kind in after if kind != "workers"}
    late = np.concatenate([book.late for book in books])
    asked = sum((book.asked for book in books), Counter())
    return parts | first | around | found | {
        "worker_ms": 1e3 * sum(cpu for _, cpu in answers) / each,
        "waited_ms": 1e3 * float(np.median(np.concatenate([book.waited for book in books]))),
        "late_p95_ms": 1e3 * float(np.quantile(late, 0.95)),
        "step_s": seconds, "ran_s": ran, "nodes": nodes, "processes": len(groups),
        "hottest_replica": max(asked.values()) / (sum(asked.values()) / REPLICAS),
        "memory_workers": memory["workers"] - memory["first"], "memory_first": memory["first"],
        "memory_rest": sum(v for kind, v in memory.items() if kind not in ("workers", "first")),
        **{f"memory_{kind}": memory[kind] for kind in ("GCS", "raylets", "replicas", "controller")},
    }  # fmt: skip


def still_teacher(folder: Path, plan: Plan):
    """The teacher that answers zeros, as a spec names it."""
    import torch
    from safetensors.torch import save_file

    from radioplat.spec.loading.load import load_spec
    from radioplat.spec.resolved.teacher import resolve_teachers

    save_file({"weight": torch.zeros(1)}, folder / "still.safetensors")
    backbone = {"type": "benchmarks.scale_teacher:Still", "kwargs": {"width": plan.width}}
    teacher = {"name": "still", "model": {"backbone": backbone}, "mode": "combo", "loss_type": "MSE"}
    teacher |= {"pretrained_teacher_model_path": str(folder / "still.safetensors"), "input_size": plan.size}
    service = {"replicas": REPLICAS, "num_cpus": 1, "precision": "fp32", "max_batch": plan.batch}
    return resolve_teachers(load_spec({"distill": {"teacher": [teacher]}, "teachers": {"still": service}}))[0]


def judge(plan: Plan) -> dict[str, float]:
    """Compare what was written with what should have been; figures of it.

    Raises:
        RuntimeError: the ledger is not the order, a checkpoint is not whole, or a status line is missing.
    """
    from benchmarks.ledger_rows import read_consumed
    from radioplat.tracking.status import read_status
    from radioplat.training.checkpoints.checkpoint import newest

    folder, count = Path(plan.folder), plan.world * plan.batch * plan.steps
    rows, refs = read_consumed(folder / "ledger"), order_of(sources()).slice(0, count)
    if rows["position"].to_pylist() != list(range(count)) or rows["id"].to_pylist() != refs.sample_id.tolist():
        raise RuntimeError("the ledger is not the order")
    whole = newest(folder)
    if whole is None or whole[1].samples_consumed != count:
        raise RuntimeError("the last checkpoint is not whole")
    if [line["step"] for line in read_status(folder / "status.json") if "max_step" in line][-1] != plan.steps:
        raise RuntimeError("status.json does not end with the last step")
    return {"ledger_files": len(list((folder / "ledger").iterdir()))}


def processes() -> dict[int, str]:
    """Every process below this one: its kind by its number."""
    import psutil

    found = {}
    for process in psutil.Process().children(recursive=True):
        try:
            command = " ".join(process.cmdline())
        except psutil.Error:
            continue
        found[process.pid] = next((kind for text, kind in KINDS.items() if text in command), "others")
    return found


def cpu_of(found: dict[int, str]) -> dict[str, float]:
    """CPU seconds so far, by kind."""
    spent: dict[str, float] = defaultdict(float)
    for pid, kind in found.items():
        try:
            fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue
        spent[kind] += (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
    return spent


def memory_of(found: dict[int, str]) -> dict[str, float]:
    """MB by kind; a page that several processes share is divided among them. ``first``: of the workers, rank 0's."""
    held: dict[str, float] = defaultdict(float)
    for pid, kind in found.items():
        try:
            lines = Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines()
        except OSError:
            continue
        size = int(next(line for line in lines if line.startswith("Pss:")).split()[1]) / 1024
        held[kind] += size
        if kind == "workers":  # rank 0's alone has torch
            held["first"] = max(held["first"], size)
    return held


def show(found: dict[int, dict[str, float]]) -> None:
    """The measured table."""
    rows = {
        "CPU per worker and step, ms: its process, all threads": "worker_ms",
        "- slice of the order": "order_ms",
        "- checksum of the pixels": "checksum_ms",
        "- share and submit to the pool": "ask_ms",
        "- fetch of the features": "answer_ms",
        "- ledger": "ledger_ms",
        "CPU per worker and step, ms: teacher's replicas": "replicas_ms",
        "- raylets": "raylets_ms",
        "- GCS": "GCS_ms",
        "CPU per step, ms, rank 0 alone: status": "status_ms",
        "- checkpoint, its share of a step": "checkpoint_ms",
        "requests of the most asked replica over the mean": "hottest_replica",
        "wait for an answer, median, ms": "waited_ms",
        "late at the end of a step, 95 %, ms": "late_p95_ms",
        "simulated step, s": "step_s",
        "memory, MB: all workers but rank 0": "memory_workers",
        "- rank 0's process": "memory_first",
        "- teacher's replicas": "memory_replicas",
        "- raylets, all": "memory_raylets",
        "- GCS, all": "memory_GCS",
        "files of the ledger": "ledger_files",
        "worker processes, one of them rank 0's": "processes",
    }
    table = [[label, *(f"{of.get(key, 0.0):.4g}" for of in found.values())] for label, key in rows.items()]
    terminal.show_table("control plane, simulated steps", ["workers", *map(str, found)], table)


def show_streams(found: dict[int, dict[str, float]]) -> None:
    """Print the table of the streams."""
    rows = {
        "steps": "steps",
        "steps a second, 256 micro-batches each": "steps_s",
        "executions of Ray Data": "executions",
        "of them behind the first of a node": "restarts",
        "longest wait of a rank for a batch, s": "wait_s",
        "CPU of coordinators per micro-batch, ms": "coordinators_ms",
        "- of decode tasks": "decode_ms",
        "- of ranks": "ranks_ms",
        "memory of a coordinator at the end, MB": "coordinator_mb",
        "until all executions were open, s": "open_s",
    }
    table = [[label, *(f"{of[key]:.4g}" for of in found.values())] for label, key in rows.items()]
    terminal.show_table("Ray Data, without models", ["workers", *map(str, found)], table)


def network() -> dict[str, str]:
    """Print the model's table; the placements that win."""
    scenes = {
        f"ViT-L, 80 GiB, {gigabits} Gbit/s": Cluster(8, network=gigabits * 1e9 / 8) for gigabits in (400, 100, 25)
    }
    scenes["ViT-g, 32 GiB, 100 Gbit/s"] = Cluster(8, memory=32 * GIB, student=LARGE)
    result, rows = {}, []
    for name, scene in scenes.items():
        for views, hits in (("", 0.0), (", views repeat", 0.9)):
            for gpus in SIZES:
                found = costs(replace(scene, gpus=gpus, hits=hits))
                found = found if hits else [cost for cost in found if cost.placement != "cache"]
                cells = [_cell(cost, gpus) for cost in found] + [""] * (len(PLACEMENTS) - len(found))
                rows.append([name + views, str(gpus), *cells, best(found).placement])
                if "100 Gbit" in name:
                    key = f"best_placement_{gpus}" + ("_tight" if "ViT-g" in name else "") + ("_repeat" if hits else "")
                    result[key] = best(found).placement
    head = ["student, GPU memory, network", "GPUs", "inline", "same node", "own nodes", "feature cache", "wins"]
    terminal.show_table("model: images/s a GPU, MB of network an image", head, rows)
    return result


def _cell(cost: Cost, gpus: int) -> str:
    return f"{cost.images_s / gpus:.1f}, {cost.network_bytes / 1e6:.1f}" if cost.images_s else cost.bound


if __name__ == "__main__":
    main()
