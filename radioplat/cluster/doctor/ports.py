"""Checks of Ray's ports, token and dashboard, and of this host's name."""

from __future__ import annotations

import ipaddress
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator, Mapping
from pathlib import Path

from radioplat.cluster.doctor.finding import Finding, fail, ok, warn

PORTS = {6379: "GCS", 8265: "dashboard, jobs", 10001: "client", 52365: "dashboard agent"}
DASHBOARD = 8265
_direct = urllib.request.build_opener(urllib.request.ProxyHandler({}))
_ANSWERS_S = 3.0


def ports() -> Iterator[Finding]:
    """Check ports, token, dashboard and host name."""
    used = listeners()
    taken = sorted(port for port in PORTS if port in used)
    if taken:
        used_ports = ", ".join(f"{port} ({PORTS[port]})" for port in taken)
        hint = "If another program uses them, give `ray start` other ports: --port, --dashboard-port and so on."
        yield warn("Ray's ports", f"in use: {used_ports}", hint)
    else:
        yield ok("Ray's ports", f"free: {', '.join(map(str, PORTS))}")
    yield token(os.environ)
    yield from open_dashboard(DASHBOARD, used.get(DASHBOARD))
    yield host_name()


def listeners() -> dict[int, bool]:
    """Return every listening TCP port, with True if other machines can reach it."""
    reachable: dict[int, bool] = {}
    for path in ("/proc/net/tcp", "/proc/net/tcp6"):
        try:
            lines = Path(path).read_text().splitlines()[1:]
        except OSError:
            continue
        for line in lines:
            fields = line.split()
            if fields[3] == "0A":  # LISTEN
                address, _, port = fields[1].partition(":")
                number = int(port, 16)
                reachable[number] = reachable.get(number, False) or not _address(address).is_loopback
    return reachable


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """Parse an address of /proc/net/tcp: words of four bytes in host byte order."""
    words = [bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8)]
    address = ipaddress.ip_address(b"".join(words))
    return getattr(address, "ipv4_mapped", None) or address


def token(environ: Mapping[str, str]) -> Finding:
    """Check that Ray requires a token, and that only this user can read it."""
    if environ.get("RAY_AUTH_MODE", "").lower() != "token":
        hint = "Anyone who reaches Ray's ports can run code here: RAY_AUTH_MODE=token, `ray get-auth-token --generate`."
        return warn("token", "RAY_AUTH_MODE is not token", hint)
    if environ.get("RAY_AUTH_TOKEN"):
        return ok("token", "from RAY_AUTH_TOKEN")
    path = Path(environ.get("RAY_AUTH_TOKEN_PATH") or Path.home() / ".ray" / "auth_token")
    make = "ray get-auth-token --generate, and the same file on all nodes."
    try:
        state, empty = path.stat(), not path.read_text().strip()
    except OSError as error:
        return fail("token", f"{path}: {error.strerror}", make)
    if empty:
        return fail("token", f"{path} is empty", make)
    if state.st_mode & 0o077:
        return warn("token", f"{path} can be read by others", f"chmod 600 {path}")
    return ok("token", str(path))


def open_dashboard(port: int, from_outside: bool | None) -> Iterator[Finding]:
    """Check whether a dashboard on this machine accepts jobs without a token.

    Args:
        from_outside: True if other machines reach the port; None if nothing listens on it.
    """
    if from_outside is None:
        return
    try:
        with _direct.open(f"http://127.0.0.1:{port}/api/jobs/", timeout=_ANSWERS_S) as answer:
            status = answer.status
    except urllib.error.HTTPError as error:
        status = error.code
    except OSError:
        return  # no HTTP server: another program's port
    if status in (401, 403):
        yield ok("dashboard", f"port {port} requires the token")
    elif status == 200 and from_outside:
        hint = "Anyone who reaches the port can run code here: --dashboard-host=127.0.0.1, and RAY_AUTH_MODE=token."
        yield fail("dashboard", f"port {port} is open to other machines, without a token", hint)
    elif status == 200:
        hint = "Every user of this machine can start jobs: RAY_AUTH_MODE=token."
        yield warn("dashboard", f"port {port} requires no token", hint)


def host_name() -> Finding:
    """Check that the address of this host's name is one that other machines can reach."""
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError:
        return warn("host name", f"{name} has no address", "Add it to /etc/hosts: gloo and NCCL look it up.")
    if ipaddress.ip_address(address).is_loopback:
        hint = "Fine on one machine; with several, /etc/hosts needs its real address, which gloo sends to the others."
        return warn("host name", f"{name} is {address}", hint)
    return ok("host name", f"{name} is {address}")
