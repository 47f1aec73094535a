"""``lease.json``: a lock on a results folder, so that one run writes it at a time, on any host.

It needs no file locks, which some NFS servers lack: the file is created by a hard link, which only one of two processes
can make. The holder touches the file regularly; another run takes over at once if it can see that the holder's process
has ended, else when it has seen no touch for :data:`STALE_S`, by its own clock.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import threading
import time
import uuid
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

from radioplat.errors import RadioplatError, TrainingError

NAME = "lease.json"
BEAT_S = 5.0
STALE_S = 45.0  # without a touch; longer than several beats and than usual hangs of a file server


@dataclass(frozen=True)
class Holder:
    """The holder of a folder's lease.

    Attributes:
        token: unique id of this hold.
        place: host, boot and process namespace; if it equals this process's, the holder's process can be checked.
        born: start of the process in clock ticks since boot, to recognize a process id that was used again.
    """

    token: str
    host: str
    place: str
    pid: int
    born: str
    since: float

    @classmethod
    def myself(cls) -> Holder:
        """Create a new hold of this process."""
        return cls(uuid.uuid4().hex, socket.gethostname(), _place(), os.getpid(), _born(os.getpid()), time.time())

    def is_gone(self) -> bool:
        """Return True if its process has ended; False if that cannot be checked."""
        return self.place == _place() and _born(self.pid) != self.born


class LeaseTaken(RadioplatError):
    """Another run writes this folder."""


class Lease:
    """Context manager that holds the lease of ``folder``; it may wait to find out whether another holder is alive.

    Args:
        folder: the results folder.
        say: called with a line for the user before a wait.
        beat_s: seconds between two touches of the file.
        stale_s: seconds without a touch after which a holder counts as ended.

    Raises:
        LeaseTaken: on entering, if another run is alive and writes the folder.
    """

    def __init__(
        self, folder: Path, say: Callable[[str], None], beat_s: float = BEAT_S, stale_s: float = STALE_S
    ) -> None:
        self.path, self._say, self._beat_s, self._stale_s = Path(folder) / NAME, say, beat_s, stale_s
        self._mine = Holder.myself()
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._beat, name="lease", daemon=True)

    @property
    def token(self) -> str:
        """Identity of this hold, which :func:`check_lease` compares."""
        return self._mine.token

    def __enter__(self) -> Lease:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        while not self._create(self.path):
            ended = self._await_end(self.path)
            if ended is not None and self._alone(ended, lambda: self._put(self.path)):
                break
            time.sleep(0.01)  # another process is taking over at the moment
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        with contextlib.suppress(OSError):  # a full disk, or a deleted folder; the lease of an ended process is free
            self._alone(self.token, lambda: self.path.unlink(missing_ok=True))

    def _create(self, path: Path) -> bool:
        """Create a lease file of this hold; return False if there is one."""
        aside = self._written_aside()
        try:
            os.link(aside, path)
        except FileExistsError:
            return False
        except OSError:  # a file system without hard links: O_EXCL instead
            try:
                descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o644)
            except FileExistsError:
                return False
            with os.fdopen(descriptor, "w") as file:
                file.write(json.dumps(asdict(self._mine)))
        finally:
            aside.unlink(missing_ok=True)
        return True

    def _put(self, path: Path) -> None:
        """Replace the holder in a lease file by this hold."""
        os.replace(self._written_aside(), path)

    def _alone(self, token: str, change: Callable[[], None], path: Path | None = None, depth: int = 1) -> bool:
        """Call ``change`` on the file of ``token``, exclusively among its holder and processes that found it stale.

        The exclusive right is a further file, named after the token, that only one process can create. Its owner checks
        that the token is unchanged; it cannot change meanwhile. The right of an ended process is taken over in the same
        way.

        Args:
            token: of the holder in the file.
            change: changes or removes the file.
            path: the file; default: the lease.
            depth: 1 for the right to the lease, 2 for the right to an ended owner's right, and so on. It is part of the
                name, since a holder that ended during its release owns the right with its own token.

        Returns:
            True if the file was changed.
        """
        path = path or self.path
        right = self.path.with_name(f".{NAME}.after.{token}" if depth == 1 else f".{NAME}.after.{depth}.{token}")
        if not self._create(right):
            ended = self._await_end(right)
            if ended is None or not self._alone(ended, lambda: self._put(right), right, depth + 1):
                return False
        try:
            if not path.exists() or _token(read_holder(path)) != token:
                return False
            change()
            return True
        finally:
            right.unlink(missing_ok=True)

    def _await_end(self, path: Path) -> str | None:
        """Wait until the holder of a file has ended: its process is gone, or it left the file alone for long enough.

        How long is measured by this process's own clock: time stamps may come from another host's.

        Returns:
            Its token (empty if its file is damaged); None if the file has another holder by now, or is removed, or if
            the holder of another file than the lease is alive.

        Raises:
            LeaseTaken: the holder of the lease is alive.
        """
        holder, begin, first, reported = read_holder(path), time.monotonic(), None, False
        while True:
            try:
                stamp, now = path.stat().st_mtime_ns, read_holder(path)
            except FileNotFoundError:
                return None
            if _token(now) != _token(holder):
                return None  # another process has taken over
            if now is not None and now.is_gone():
                return _token(holder)
            if path == self.path and now is not None and now.place == _place():
                raise self._taken(now, "it is alive")
            if first is None:
                first = stamp
            if stamp != first:
                if path == self.path:
                    raise self._taken(now, "it gave a sign of life just now")
                return None
            if time.monotonic() - begin >= self._stale_s:
                return _token(holder)
            if not reported and (now is None or now.place != _place()):  # here, a right lasts for milliseconds
                reported = True
                self._say(
                    f"{path.parent} is held by {named(now)}: looking for at most {self._stale_s:.0f} s whether it lives"
                )
            time.sleep(min(0.5, self._beat_s / 4))

    def _written_aside(self) -> Path:
        """Write a temporary lease file of this hold."""
        aside = self.path.with_name(f".{NAME}.{self.token}")
        aside.write_text(json.dumps(asdict(self._mine)))
        return aside

    def _taken(self, holder: Holder | None, why: str) -> LeaseTaken:
        return LeaseTaken(
            f"another run writes this folder: {named(holder)}; {why}",
            where=str(self.path.parent),
            hint="Let it end or stop it, or choose another results_dir. If it is stopped by force, this command takes "
            f"over at once on that host, and after at most {self._stale_s:.0f} s on another.",
        )

    def _beat(self) -> None:
        while not self._stop.wait(self._beat_s):
            with contextlib.suppress(OSError):  # the storage may fail temporarily; the next touch may succeed
                holder = read_holder(self.path)
                if holder is not None and holder.token == self.token:
                    os.utime(self.path)


def read_holder(path: Path) -> Holder | None:
    """Read the holder from a lease file; None if it is missing or damaged."""
    try:
        return parse_holder(path.read_bytes())
    except OSError:
        return None


def parse_holder(text: bytes) -> Holder | None:
    """Parse the holder in the text of such a file; None if it is half-written or has a wrong value."""
    try:
        holder = Holder(**json.loads(text))
    except (ValueError, TypeError, RecursionError):
        return None
    texts = all(type(value) is str for value in (holder.token, holder.host, holder.place, holder.born))
    numbers = type(holder.pid) is int and type(holder.since) in (int, float)
    return holder if texts and numbers and 0 < holder.pid < 2**31 and 0 <= holder.since < 1e11 else None


def held_by(folder: Path) -> str:
    """Describe the process that writes a folder now; empty if nobody holds its lease, or the holder has ended.

    A holder on another host counts as alive: from here it cannot be looked at, and this does not wait for a touch.
    """
    holder = read_holder(Path(folder) / NAME)
    if holder is None or holder.is_gone():
        return ""
    return named(holder) if holder.place == _place() else f"{named(holder)}, if it lives"


def check_lease(folder: Path, token: str) -> TrainingError | None:
    """Return an error if another run than that of ``token`` holds ``folder``, or the folder is gone.

    An empty token accepts any state.
    """
    if token and _is_missing(folder):
        hint = "This run ends; it writes no further checkpoint."
        return TrainingError("the folder of this run was moved or removed", where=str(folder), hint=hint)
    holder = read_holder(Path(folder) / NAME) if token else None
    if holder is None or holder.token == token:
        return None
    return TrainingError(
        f"another run has taken this folder over: {named(holder)}",
        where=str(folder),
        hint="This one was silent for too long, or its driver was lost; it writes no further checkpoint.",
    )


def _is_missing(folder: Path) -> bool:
    """Return whether there is no such folder; False if the storage does not say."""
    try:
        os.stat(folder)
    except FileNotFoundError:
        return True
    except OSError:
        return False
    return False


def _token(holder: Holder | None) -> str:
    return holder.token if holder else ""


def named(holder: Holder | None) -> str:
    """Describe a holder."""
    if holder is None:
        return "a run that has left no name"
    return f"process {holder.pid} on {holder.host}, since {time.strftime('%F %T', time.localtime(holder.since))}"


def _place() -> str:
    """Return host, boot and process namespace, within which a process id is unique."""
    parts = [socket.gethostname()]
    for read in (
        lambda: Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        lambda: os.readlink("/proc/self/ns/pid"),
    ):
        with contextlib.suppress(OSError):
            parts.append(read())
    return " ".join(parts)


def _born(pid: int) -> str:
    """Return the start time of process ``pid``; empty if there is none, ``?`` if only its existence is known."""
    with contextlib.suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]  # a zombie has ended
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except OSError:
        return "?"
    return "?"
