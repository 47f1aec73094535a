"""Ray's ports on this machine: free, or Ray's, and closed to strangers."""

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


def ports(environ: Mapping[str, str] = os.environ, dashboard: int = DASHBOARD) -> Iterator[Finding]:
    """Ports, the token, and this host's name.

    Args:
        dashboard: its port.
    """
    used = listeners()
    taken = sorted(port for port in PORTS if port in used)
    if taken:
        said = ", ".join(f"{port} ({PORTS[port]})" for port in taken)
        hint = "Where that is no Ray of yours, `ray start` needs other ports: --port, --dashboard-port and their kin."
        yield warn("Ray's ports", f"in use: {said}", hint)
    else:
        yield ok("Ray's ports", f"free: {', '.join(map(str, PORTS))}")
    yield token(environ)
    yield from open_dashboard(dashboard, used.get(dashboard))
    yield host_name()


def listeners() -> dict[int, bool]:
    """Every TCP port that is listened on: whether from other machines, too."""
    found: dict[int, bool] = {}
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
                found[number] = found.get(number, False) or not _address(address).is_loopback
    return found


def _address(text: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address:
    """As /proc has it: words of four bytes in the host's order."""
    words = [bytes.fromhex(text[i : i + 8])[::-1] for i in range(0, len(text), 8)]
    address = ipaddress.ip_address(b"".join(words))
    return getattr(address, "ipv4_mapped", None) or address


def token(environ: Mapping[str, str]) -> Finding:
    """Whether Ray's ports ask for a token, and nobody else reads it."""
    if environ.get("RAY_AUTH_MODE", "").lower() != "token":
        hint = "Who reaches Ray's ports runs code here: RAY_AUTH_MODE=token, `ray get-auth-token --generate`."
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
    """Whether the dashboard that runs here lets a stranger start jobs.

    Args:
        from_outside: whether other machines reach the port; None where nobody listens.
    """
    if from_outside is None:
        return
    try:
        with _direct.open(f"http://127.0.0.1:{port}/api/jobs/", timeout=_ANSWERS_S) as answer:
            status = answer.status
    except urllib.error.HTTPError as error:
        status = error.code
    except OSError:
        return  # it speaks no HTTP: another program's
    if status in (401, 403):
        yield ok("dashboard", f"port {port} asks for the token")
    elif status == 200 and from_outside:
        hint = "Anyone who reaches the port runs code here: --dashboard-host=127.0.0.1, and RAY_AUTH_MODE=token."
        yield fail("dashboard", f"port {port} is open to other machines, without a token", hint)
    elif status == 200:
        hint = "Every user of this machine may start jobs: RAY_AUTH_MODE=token."
        yield warn("dashboard", f"port {port} asks for no token", hint)


def host_name() -> Finding:
    """Whether other machines can find this one by the address that its name has here."""
    name = socket.gethostname()
    try:
        address = socket.gethostbyname(name)
    except OSError:
        return warn("host name", f"{name} has no address", "Add it to /etc/hosts: gloo and NCCL look it up.")
    if ipaddress.ip_address(address).is_loopback:
        hint = "Fine on one machine; among several it needs its real address in /etc/hosts, which gloo tells others."
        return warn("host name", f"{name} is {address}", hint)
    return ok("host name", f"{name} is {address}")
