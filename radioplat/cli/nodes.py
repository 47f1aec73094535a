"""The commands ``radioplat nodes ...`` and ``radioplat doctor``: arguments and output."""

from __future__ import annotations

import argparse

from radioplat.common.terminal import note


def add_watch(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``radioplat nodes watch``."""
    from radioplat.cluster.preemption.metadata import CLOUDS

    parser.add_argument("--cloud", choices=("auto", *CLOUDS), default="auto", help="default: detected")
    parser.add_argument("--every", type=float, default=5.0, metavar="SECONDS", help="time between two requests (5)")
    parser.add_argument(
        "--process", type=int, metavar="PID", help="send SIGTERM to this run instead of draining Ray's node"
    )


def watch(args: argparse.Namespace) -> None:
    """Poll the cloud for a preemption notice of this machine, then drain its Ray node."""
    from radioplat.cluster.preemption.watch import drain_this_node, end_process
    from radioplat.cluster.preemption.watch import watch as run
    from radioplat.errors import PlacementError

    act = drain_this_node if args.process is None else end_process(args.process)
    if run(args.cloud, act, note, args.every) is None:
        raise PlacementError("the machine's deadline passed before its node could be drained")


def add_drain(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``radioplat nodes drain``."""
    parser.add_argument("--seconds", type=float, default=110.0, help="time until the node is terminated (110)")
    parser.add_argument("--reason", default="radioplat nodes drain", help="text shown by Ray")
    parser.add_argument("--node-id", help="Ray node id, in hex; default: the node on this machine")
    parser.add_argument("--wait", action="store_true", help="wait until no worker on this machine trains any more")


def drain(args: argparse.Namespace) -> None:
    """Announce that a cluster node will be terminated: runs on it save and move away."""
    import time

    from radioplat.cluster.preemption.drain import await_workers
    from radioplat.cluster.preemption.drain import drain as run

    begin = time.monotonic()
    run(args.seconds, args.reason, args.node_id)
    note(f"the node is draining; it will be terminated in {args.seconds:g} s")
    if args.wait:
        remaining = args.seconds - (time.monotonic() - begin)
        done = await_workers(remaining)
        note("no worker trains here any more" if done else "the time is over; workers still train here")


def add_stop(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``radioplat nodes stop``."""
    parser.add_argument("folder", help="a results_dir, or a folder of several")
    parser.add_argument("--seconds", type=float, default=110.0, help="time to wait for their exit (110)")


def stop(args: argparse.Namespace) -> None:
    """Stop the runs below a folder whose commands run on this machine: save a checkpoint, exit, wait for it."""
    from pathlib import Path

    from radioplat.cluster.preemption.stop import stop as run
    from radioplat.errors import PlacementError, Problem

    stopped = run(Path(args.folder), args.seconds)
    processes = ", ".join(f"process {holder.pid}" for holder in stopped.signalled)
    note(f"asked to save and exit: {processes or 'no run of this machine'}")
    late = [f"process {holder.pid} still runs after {args.seconds:g} s" for holder in stopped.remaining]
    if problems := [*(Problem(message, args.folder) for message in late), *stopped.problems]:
        raise PlacementError(*problems)


def add_doctor(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``radioplat doctor``."""
    parser.add_argument(
        "--results", default=".", metavar="DIR", help="results_dir of the runs (default: current folder)"
    )
    parser.add_argument("--json", action="store_true", help="print one JSON object")


def doctor(args: argparse.Namespace) -> None:
    """Check driver, NCCL, shared memory, limits, ports, token, clock, disks and versions of this machine."""
    import json
    import sys
    from pathlib import Path

    from radioplat.cluster.doctor.doctor import doctor as run
    from radioplat.cluster.doctor.finding import Level
    from radioplat.common import terminal

    findings = run(Path(args.results))
    failed = sum(finding.level is Level.fail for finding in findings)
    if args.json:
        print(json.dumps({"fit": not failed, "findings": [finding.as_json() for finding in findings]}, indent=1))
    else:
        rows = [[finding.item, finding.level.value, finding.state, finding.hint] for finding in findings]
        warned = sum(finding.level is Level.warn for finding in findings)
        terminal.show_table(
            "radioplat doctor", ["", "", "found", "what to do"], rows, f"{failed} to repair, {warned} to look at"
        )
    if failed:
        sys.exit(1)
