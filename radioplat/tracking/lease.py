"""``lease.json``: who writes a results folder. One run at a time, whatever host it is on.

No file locks, which not every NFS has: the file comes into being by a hard link, which only one of two can make. Ages
are taken between two files of the same storage, so that hosts' clocks need not agree. The holder touches the file;
one that stopped is taken over, at once where its process is seen to be gone, else when it was silent for
:data:`STALE_S`.
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
STALE_S = 45.0  # of silence: several beats, and as long as a file server may hang


@dataclass(frozen=True)
class Holder:
    """The holder of a folder.

    Attributes:
        token: of this hold, unlike any other.
        place: host, boot and process namespace: where it equals ours, we can look whether the process lives.
        born: the process's start in clock ticks since boot: a number used again is another process.
    """

    token: str
    host: str
    place: str
    pid: int
    born: str
    since: float

    @classmethod
    def myself(cls) -> Holder:
        """A new hold of this process."""
        return cls(uuid.uuid4().hex, socket.gethostname(), _place(), os.getpid(), _born(os.getpid()), time.time())

    def is_gone(self) -> bool:
        """Whether its process is seen to have ended; False where we cannot look."""
        return self.place == _place() and _born(self.pid) != self.born


class LeaseTaken(RadioplatError):
    """Another run writes this folder."""


class Lease:
    """Hold ``folder``, as a context manager; waits where it must find out whether another holder still lives.

    Args:
        say: gets a line where it waits.
        beat_s, stale_s: seconds between signs of life, and of silence after which a holder counts as gone.

    Raises:
        LeaseTaken: on entering; another run is alive and writes there.
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
            ended = self._await_end()
            if ended is not None and self._alone(ended, lambda: self._put(self.path)):
                break
            time.sleep(0.01)  # another newcomer is at it
        self._thread.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._stop.set()
        self._thread.join()
        with contextlib.suppress(OSError):  # a full disk, or the folder is gone; a dead holder is taken over anyway
            self._alone(self.token, lambda: self.path.unlink(missing_ok=True))

    def _create(self, path: Path) -> bool:
        """Make a file that names us, unless there is one."""
        aside = self._written_aside()
        try:
            os.link(aside, path)
        except FileExistsError:
            return False
        except OSError:  # a file system without links; what O_EXCL promises is the next best
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
        """Make a file name us in place of whom it names."""
        os.replace(self._written_aside(), path)

    def _alone(self, token: str, change: Callable[[], None], path: Path | None = None, depth: int = 1) -> bool:
        """``change`` the file of ``token`` as the only one who may: newcomers that found it stale, and its holder.

        The right is a file of its own, named after the token, that only one can make. Who has it finds the token still
        in place, or comes too late; it cannot go while he looks. A right whose owner died is taken over likewise.

        Args:
            depth: 1 for the right to the lease, 2 for the right to a dead owner's right, and so on. It is part of the
                name: a holder that died while it released owns the right that bears its own token.

        Returns:
            Whether it was changed.
        """
        path = path or self.path
        right = self.path.with_name(f".{NAME}.after.{token}" if depth == 1 else f".{NAME}.after.{depth}.{token}")
        if not self._create(right):
            other = read_holder(right)
            age = self._age(right)
            dead = age is not None and (age > self._stale_s or (other is not None and other.is_gone()))
            if not dead or not self._alone(_token(other), lambda: self._put(right), right, depth + 1):
                return False
        try:
            if not path.exists() or _token(read_holder(path)) != token:
                return False
            change()
            return True
        finally:
            right.unlink(missing_ok=True)

    def _await_end(self) -> str | None:
        """Come back when the holder has gone.

        Returns:
            Its token (empty where its file names nobody); None where the file is another's by now, or away.

        Raises:
            LeaseTaken: it gave a sign of life.
        """
        holder, first, reported = read_holder(self.path), self._age(self.path), False
        while True:
            now, age = read_holder(self.path), self._age(self.path)
            if age is None:
                return None
            if _token(now) != _token(holder):
                return None  # another newcomer was quicker
            if now is not None and now.is_gone():
                break
            if now is not None and now.place == _place():
                raise self._taken(now, "it is alive")
            if age > self._stale_s:
                break
            if first is not None and age < first:  # it was touched since we first looked
                raise self._taken(now, "it gave a sign of life just now")
            if not reported:
                reported = True
                self._say(
                    f"{self.path.parent} is held by {named(now)}, silent for {age:.0f} s: looking for at most "
                    f"{self._stale_s - age:.0f} s whether it lives"
                )
            first = age
            time.sleep(min(0.5, self._beat_s / 4))
        return _token(holder)

    def _age(self, path: Path) -> float | None:
        """Seconds since ``path`` was touched, by the storage's own clock; None where there is no such file."""
        aside = self._written_aside()
        try:
            return aside.stat().st_mtime - path.stat().st_mtime
        except FileNotFoundError:
            return None
        finally:
            aside.unlink(missing_ok=True)

    def _written_aside(self) -> Path:
        """A file of our own that names us."""
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
            with contextlib.suppress(OSError):  # a storage that fails for a while; the next beat may come through
                holder = read_holder(self.path)
                if holder is not None and holder.token == self.token:
                    os.utime(self.path)


def read_holder(path: Path) -> Holder | None:
    """Read the holder from a lease file; None if it is missing or half-written."""
    try:
        return parse_holder(path.read_bytes())
    except OSError:
        return None


def parse_holder(text: bytes) -> Holder | None:
    """Parse the holder in the text of such a file; None if it is half-written."""
    try:
        return Holder(**json.loads(text))
    except (ValueError, TypeError):
        return None


def check_lease(folder: Path, token: str) -> TrainingError | None:
    """An error where ``folder`` is held by another run than the one that was given ``token``; empty means any."""
    holder = read_holder(Path(folder) / NAME) if token else None
    if holder is None or holder.token == token:
        return None
    return TrainingError(
        f"another run has taken this folder over: {named(holder)}",
        where=str(folder),
        hint="This one was silent for too long, or its driver was lost; it writes no further checkpoint.",
    )


def _token(holder: Holder | None) -> str:
    return holder.token if holder else ""


def named(holder: Holder | None) -> str:
    """A holder in words."""
    if holder is None:
        return "a run that has left no name"
    return f"process {holder.pid} on {holder.host}, since {time.strftime('%F %T', time.localtime(holder.since))}"


def _place() -> str:
    """Where process numbers mean the same as here."""
    parts = [socket.gethostname()]
    for read in (
        lambda: Path("/proc/sys/kernel/random/boot_id").read_text().strip(),
        lambda: os.readlink("/proc/self/ns/pid"),
    ):
        with contextlib.suppress(OSError):
            parts.append(read())
    return " ".join(parts)


def _born(pid: int) -> str:
    """When process ``pid`` began; empty where there is none, ``?`` where only that it lives is known."""
    with contextlib.suppress(OSError, IndexError):
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        return "" if fields[0] in "ZX" else fields[19]  # one that nobody has waited for is dead all the same
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return ""
    except OSError:
        return "?"
    return "?"
