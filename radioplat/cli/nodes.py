"""The commands ``radioplat nodes ...`` and ``radioplat doctor``: their arguments, and what they say."""

from __future__ import annotations

import argparse

from radioplat.common.terminal import note


def add_watch(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``radioplat nodes watch``."""
    parser.add_argument("--cloud", choices=("auto", "aws", "gcp"), default="auto", help="default: the one that answers")
    parser.add_argument("--every", type=float, default=5.0, metavar="SECONDS", help="between two looks (5)")
    parser.add_argument(
        "--process", type=int, metavar="PID", help="send SIGTERM to this run instead of draining Ray's node"
    )


def watch(args: argparse.Namespace) -> None:
    """Ask the cloud for the notice that this machine is to go, and drain Ray's node on it."""
    from radioplat.cluster.preemption.watch import drain_this_node, end_process
    from radioplat.cluster.preemption.watch import watch as run
    from radioplat.errors import PlacementError

    act = end_process(args.process) if args.process else drain_this_node
    if run(args.cloud, act, note, args.every) is None:
        raise PlacementError("the notice ran out before the cluster could be told")


def add_drain(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``radioplat nodes drain``."""
    parser.add_argument("--seconds", type=float, default=110.0, help="until the node goes (110)")
    parser.add_argument("--reason", default="radioplat nodes drain", help="for people")
    parser.add_argument("--node-id", help="Ray's, in hex; default: the node on this machine")
    parser.add_argument("--wait", action="store_true", help="return when no worker on this machine trains any more")


def drain(args: argparse.Namespace) -> None:
    """Give notice that a node of the cluster is to go: what runs there saves and leaves."""
    import time

    from radioplat.cluster.preemption.drain import await_workers
    from radioplat.cluster.preemption.drain import drain as run

    begin = time.monotonic()
    run(args.seconds, args.reason, args.node_id)
    note(f"the cluster knows: this node goes in {args.seconds:g} s")
    if args.wait:
        left = args.seconds - (time.monotonic() - begin)
        note("no worker trains here any more" if await_workers(left) else "time is up; workers still train here")


def add_stop(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``radioplat nodes stop``."""
    parser.add_argument("folder", help="a results_dir, or a folder of them")
    parser.add_argument("--seconds", type=float, default=110.0, help="how long to wait for their end (110)")


def stop(args: argparse.Namespace) -> None:
    """Ask the runs below a folder whose commands live on this machine to save and leave, and wait for it."""
    from pathlib import Path

    from radioplat.cluster.preemption.stop import stop as run
    from radioplat.errors import TrainingError

    asked, left = run(Path(args.folder), args.seconds)
    note(f"asked to save and leave: {', '.join(f'process {holder.pid}' for holder in asked) or 'no run is here'}")
    if left:
        raise TrainingError(f"process {left[0].pid} is still there after {args.seconds:g} s", where=args.folder)


def add_doctor(parser: argparse.ArgumentParser) -> None:
    """Arguments of ``radioplat doctor``."""
    parser.add_argument("--results", default=".", metavar="DIR", help="the results_dir of runs (default: here)")
    parser.add_argument("--json", action="store_true", help="one JSON object for a program to read")


def doctor(args: argparse.Namespace) -> int:
    """Check driver, NCCL, shared memory, limits, ports, token, clock, disks and versions; returns the exit status."""
    import json
    from dataclasses import asdict
    from pathlib import Path

    from radioplat.cluster.doctor.doctor import doctor as run
    from radioplat.cluster.doctor.finding import Level
    from radioplat.common import terminal

    found = run(Path(args.results))
    failed = sum(finding.level is Level.fail for finding in found)
    if args.json:
        print(json.dumps({"fit": not failed, "findings": [asdict(finding) for finding in found]}, indent=1))
    else:
        rows = [[finding.what, finding.level.value, finding.said, finding.hint] for finding in found]
        warned = sum(finding.level is Level.warn for finding in found)
        terminal.show_table(
            "radioplat doctor", ["", "", "found", "what to do"], rows, f"{failed} to repair, {warned} to look at"
        )
    return 1 if failed else 0


ARGUMENTS = {"watch": add_watch, "drain": add_drain, "stop": add_stop}
