"""Start Ray's worker processes by forks of one that has imported what they need.

A worker of a run imports torch, Ray Train and the run's code: some ten seconds of a core, each time. On one machine
that need not be: ``python worker_forks.py --serve SOCKET MODULE... -- MODULE...`` imports the first modules once and
says so on stdout. For each raylet that asks it forks itself; that fork imports the second modules, those that import
Ray, and forks itself for each worker. (Ray reads the numbers of job and raylet from the environment when it is
imported.)

A raylet started with ``setup_worker_path=worker_forks.py`` and the environment variable ``WORKER_FORKS`` (the socket)
asks for a fork where it would start a process. A fork is a process of its own, with its own id, title, memory and
connections: it can be killed and lost like any other. Workers whose runtime environment names another interpreter or a
container, and workers in other languages, are started as Ray starts them, and so is every worker if nothing listens.
"""

from __future__ import annotations

import contextlib
import gc
import json
import os
import select
import socket
import sys

SOCKET = "WORKER_FORKS"  # environment variable
_RAYLET = ("RAY_JOB_ID", "RAY_RAYLET_PID")  # environment variables that Ray reads when it is imported
_LONGEST = 1 << 20  # bytes of a request
_FORKED = b"forked"


def main() -> None:
    """Serve forks, or ask for one: a raylet begins the arguments with the worker's file."""
    if sys.argv[1] == "--serve":
        place = sys.argv.index("--")
        serve(sys.argv[2], sys.argv[3:place], sys.argv[place + 1 :])
    else:
        ask(sys.argv[1:])


# -- the side of a raylet: imports next to nothing ------------------------------------------------------------------


def ask(arguments: list[str]) -> None:
    """Ask for a fork that runs ``arguments``, as Ray's ``setup_worker.py`` gets them; else start the worker itself."""
    given, rest = {}, []
    for argument in arguments:
        name, _, value = argument.partition("=")
        if name in ("--serialized-runtime-env-context", "--language"):
            given[name] = value
        else:
            rest.append(argument)
    context = json.loads(given.get("--serialized-runtime-env-context") or "{}")
    plain = given.get("--language") == "PYTHON" and not context.get("command_prefix")
    plain = plain and not context.get("override_worker_entrypoint")
    plain = plain and context.get("py_executable") in (None, sys.executable)
    if plain and _asked(rest, context.get("env_vars") or {}):
        return
    from importlib.util import find_spec

    ray = find_spec("ray")
    assert ray is not None and ray.origin is not None
    usual = os.path.join(os.path.dirname(ray.origin), "_private", "workers", "setup_worker.py")
    os.execv(sys.executable, [sys.executable, usual, *arguments])


def _asked(arguments: list[str], variables: dict[str, str]) -> bool:
    """Send a request; return whether a fork has been made."""
    environment = {**os.environ, **{name: os.path.expandvars(value) for name, value in variables.items()}}
    request = json.dumps({"arguments": arguments, "environment": environment, "folder": os.getcwd()}).encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as connection:
        try:
            connection.connect(os.environ[SOCKET])
            socket.send_fds(connection, [request], [0, 1, 2])
            return connection.recv(16) == _FORKED
        except (KeyError, OSError):
            return False


# -- the side that forks --------------------------------------------------------------------------------------------


def serve(path: str, modules: list[str], late: list[str]) -> None:
    """Import ``modules``, print ``ready``, and pass each request to the fork of its raylet, until stdin ends.

    Args:
        late: modules that each raylet's fork imports.
    """
    with contextlib.redirect_stdout(sys.stderr):  # some modules print; stdout is for `ready`
        _import(modules)
    forks: dict[tuple[str, ...], socket.socket] = {}
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(path)
        listener.listen(64)
        print("ready", flush=True)
        while True:
            ready = select.select([listener, sys.stdin], [], [], 1.0)[0]
            _reap()
            if sys.stdin in ready:
                return
            if listener not in ready:
                continue
            connection = listener.accept()[0]
            with connection:
                request, descriptors, _, _ = socket.recv_fds(connection, _LONGEST, 3)
                if not request:
                    continue
                environment = json.loads(request)["environment"]
                key = tuple(environment.get(name, "") for name in _RAYLET)
                if key not in forks:
                    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
                    if os.fork() == 0:
                        for each in (listener, ours, connection, *forks.values()):
                            each.close()
                        for descriptor in descriptors:
                            os.close(descriptor)
                        os.environ.update({name: environment.get(name, "") for name in _RAYLET})
                        _serve_raylet(theirs, late)
                    theirs.close()
                    forks[key] = ours
                with contextlib.suppress(OSError):  # its raylet has ended, and it too: nobody waits for the answer
                    socket.send_fds(forks[key], [request], [*descriptors, connection.fileno()])
                for descriptor in descriptors:
                    os.close(descriptor)


def _serve_raylet(requests: socket.socket, modules: list[str]) -> None:
    """Import ``modules`` and fork for each request, until the raylet or the other side ends; never returns."""
    import threading

    os.setsid()
    _import(modules)
    # Ray's C++ draws ids by a random generator of each thread. Imports have used this thread's, and forks of this
    # thread would all continue it with the same ids.
    forking = threading.Thread(target=_fork_workers, args=(requests,))
    forking.start()
    forking.join()
    os._exit(1)


def _fork_workers(requests: socket.socket) -> None:
    """Fork for each request, in a thread that draws no ids itself; never returns."""
    while True:
        ready = select.select([requests], [], [], 1.0)[0]
        _reap()
        if not os.path.exists(f"/proc/{os.environ[_RAYLET[1]]}"):
            os._exit(0)
        if not ready:
            continue
        request, descriptors, _, _ = socket.recv_fds(requests, _LONGEST, 4)
        if not request:
            os._exit(0)
        _change_seeds()
        with socket.socket(fileno=descriptors.pop()) as connection:
            if os.fork() == 0:
                connection.close()
                requests.close()
                _become(json.loads(request), descriptors)
            with contextlib.suppress(OSError):
                connection.send(_FORKED)
        for descriptor in descriptors:
            os.close(descriptor)


def _change_seeds() -> None:
    """Let the next fork draw other ids than the one before: an object of one worker with the id of another's ends it.

    Ray's generator is ``absl::BitGen``, which a new thread seeds from one of eight pools of random bytes of the
    process; threads take the pools in turn, and what is taken changes a pool. Sixteen threads change all of them.
    """
    import threading

    import ray

    for _ in range(16):
        thread = threading.Thread(target=ray.NodeID.from_random)
        thread.start()
        thread.join()


def _become(request: dict, descriptors: list[int]) -> None:
    """Be the worker; never returns."""
    status = 1
    try:
        _prepare(request, descriptors)
        import runpy

        runpy.run_path(sys.argv[0], run_name="__main__")
        status = 0
    except SystemExit as ended:
        status = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        import traceback

        traceback.print_exc()
    os._exit(status)


def _prepare(request: dict, descriptors: list[int]) -> None:
    """Give this process the session, files, environment, folder and arguments of one that is started."""
    import random

    os.setsid()
    for place, descriptor in enumerate(descriptors):
        os.dup2(descriptor, place)
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["folder"])
    sys.argv = request["arguments"]
    sys.path[0] = os.path.dirname(sys.argv[0])  # as of a program that is started
    random.seed()
    if numpy := sys.modules.get("numpy"):
        numpy.random.seed()


def _import(modules: list[str]) -> None:
    """Import modules, and leave what they made to the collector of no fork: it would write to all pages."""
    import importlib

    for module in modules:
        importlib.import_module(module)
    gc.collect()
    gc.freeze()


def _reap() -> None:
    with contextlib.suppress(ChildProcessError):
        while os.waitpid(-1, os.WNOHANG)[0]:
            pass


if __name__ == "__main__":
    main()
