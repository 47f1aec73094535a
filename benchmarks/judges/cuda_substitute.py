"""A substitute for CUDA on a machine without a GPU, which counts copies and finds errors of order.

After :func:`substitute`, ``torch.device("cuda")`` is a substitute: its tensors are a subclass that computes on the
CPU, says that it is on ``cuda:0`` and refuses what CUDA refuses (``numpy``, operators with tensors on the host). Memory
counts as pinned if it was allocated with ``pin_memory=True``.

Copies in both directions are counted by thread and place. Streams and events have vector clocks, so that errors of
order are found that only show by chance on a GPU: a tensor that is read on a stream without waiting for the stream that
wrote it, or without ``record_stream``; pinned memory that the host writes or reads while a copy may still use it. Waits
for the whole device are counted. Imports nothing of radioplat.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch

DEVICE = torch.device("cuda", 0)
_FACTORIES = ("empty", "zeros", "ones", "full", "arange", "rand", "randn", "tensor", "as_tensor", "eye", "linspace")
_FROM_PYTHON = ("tensor", "as_tensor")
_INDEXING = ("__getitem__", "__setitem__", "index_select", "gather")
_HERE = str(Path(__file__).resolve())
_TORCH = str(Path(torch.__file__).resolve().parent)
_to, _copy, _numpy = torch.Tensor.to, torch.Tensor.copy_, torch.Tensor.numpy
_storage, _shares = torch.Tensor.untyped_storage, torch.Tensor.as_subclass
_local = threading.local()
_written: dict[int, tuple[int, int]] = {}  # by storage on the device: the work that wrote it
_known: dict[int, set[int]] = {}  # by storage on the device: the streams that its allocator knows of
_pinned: dict[int, Any] = {}  # pinned storages, kept so that their addresses stay theirs
_in_use: dict[int, list[tuple[int, int, int, int]]] = {}  # by pinned storage: bytes and work of copies


def _key(tensor: torch.Tensor) -> int:
    return _storage(tensor).data_ptr()


class Counts:
    """Bytes and errors since the last :meth:`clear`, and the threads that chose their device."""

    def __init__(self) -> None:
        self._lock = threading.RLock()
        self.training = threading.get_ident()
        self.chosen: set[str] = set()
        self.clear()

    def clear(self) -> None:
        """Begin to count; tensors that are there already, such as weights, are not expected to end."""
        with self._lock:
            _known.clear()
            self.bytes: Counter[tuple[str, ...]] = Counter()
            self.errors: Counter[str] = Counter()
            self.waits: Counter[str] = Counter()

    def check(self, what: str, is_wrong: Callable[[], bool]) -> None:
        """Count an error of order if ``is_wrong``: no :meth:`clear` of another thread comes between them."""
        with self._lock:
            if is_wrong():
                self.wrong(what)

    def copied(self, direction: str, size: int, pinned: bool, waits: bool) -> None:
        """Count a copy: ``direction`` is ``to_device`` or ``to_host``; ``waits``: the host waits until it is done."""
        mine = "training" if threading.get_ident() == self.training else "other"
        how = "pinned" if pinned else "unpinned"
        with self._lock:
            self.bytes[direction, mine, how, "waits" if waits or not pinned else "goes on", _place()] += size

    def wrong(self, what: str) -> None:
        """Count an error of order."""
        with self._lock:
            self.errors[f"{what} {_place()}"] += 1

    def waited(self) -> None:
        """Count a wait for the whole device."""
        with self._lock:
            self.waits[_place()] += 1


COUNTS = Counts()


class Stream:
    """A stream that is always done; its clock says which work of other streams it has waited for."""

    number = 0

    def __init__(self, device: Any = None, priority: int = 0, **options: Any) -> None:
        Stream.number += 1
        self.id, self.clock, self.device = Stream.number, Counter(), DEVICE

    def tick(self) -> tuple[int, int]:
        """Count one piece of work, and return its place."""
        self.clock[self.id] += 1
        return self.id, self.clock[self.id]

    def wait_event(self, event: Event) -> None:
        """Wait on the device."""
        self.clock |= event.clock

    def wait_stream(self, other: Stream) -> None:
        """Wait on the device."""
        self.clock |= other.clock

    def record_event(self, event: Event | None = None) -> Event:
        """Record ``event`` or a new one."""
        event = event or Event()
        event.record(self)
        return event

    def synchronize(self) -> None:
        """Let the host wait."""
        HOST.clock |= self.clock


class Event:
    """A place in a stream's work."""

    def __init__(self, enable_timing: bool = False, blocking: bool = False, **options: Any) -> None:
        self.clock: Counter[int] = Counter()
        self._timing, self._at = enable_timing, 0.0

    def record(self, stream: Stream | None = None) -> None:
        """Take the place that ``stream`` has reached."""
        self.clock, self._at = Counter((stream or current_stream()).clock), time.perf_counter()

    def synchronize(self) -> None:
        """Let the host wait."""
        HOST.clock |= self.clock

    def query(self) -> bool:
        """Say that it is over, as :meth:`synchronize`."""
        self.synchronize()
        return True

    def elapsed_time(self, end: Event) -> float:
        """Return milliseconds; both events must be over, as the host knows."""
        if not (self._timing and end._timing):
            raise RuntimeError("Both events must be created with argument 'enable_timing=True'.")
        if end.clock - HOST.clock:
            raise RuntimeError("Both events must be completed before calculating elapsed time.")
        return 1000 * (end._at - self._at)


HOST, DEFAULT = Stream(), Stream()


def current_stream(device: Any = None) -> Stream:
    """Return this thread's stream."""
    return getattr(_local, "stream", DEFAULT)


@contextlib.contextmanager
def in_stream(stream: Stream | None) -> Iterator[None]:
    """Work in ``stream`` during the block."""
    before = current_stream()
    _local.stream = stream or before
    try:
        yield
    finally:
        _local.stream = before


class OnDevice(torch.Tensor):
    """A tensor of the substitute."""

    device = property(lambda self: DEVICE)  # type: ignore[assignment]
    is_cuda = property(lambda self: True)  # type: ignore[assignment]
    is_cpu = property(lambda self: False)  # type: ignore[assignment]

    def record_stream(self, stream: Stream) -> None:
        """Tell the allocator that ``stream`` uses the memory."""
        _known.setdefault(_key(self), set()).add(stream.id)

    @classmethod
    def __torch_function__(cls, func, types, args=(), kwargs=None):  # noqa: ANN001, ANN206
        """Compute; check that streams were waited for and that nothing is on the host."""
        kwargs, name = dict(kwargs or {}), getattr(func, "__name__", "")
        if name in ("numpy", "__array__"):
            raise TypeError("can't convert cuda:0 device type tensor to numpy. Use Tensor.cpu() first.")
        target = kwargs.get("device")
        if target is not None:
            kwargs["device"] = torch.device("cpu")
        if name in ("__get__", "__set__", "size", "dim", "numel", "stride", "__len__", "untyped_storage", "data_ptr"):
            return super().__torch_function__(func, types, args, kwargs)
        inputs = list(_tensors((args, list(kwargs.values()))))
        stream = current_stream()
        for tensor in inputs:
            if isinstance(tensor, OnDevice):
                _check_order(tensor, stream)
            elif tensor.dim() and name in _INDEXING:
                COUNTS.copied("to_device", tensor.nbytes, _is_pinned(tensor), waits=True)
            elif tensor.dim():
                raise RuntimeError(f"{name}: Expected all tensors to be on the same device, cuda:0 and cpu")
        result = super().__torch_function__(func, types, args, kwargs)
        before = {_key(tensor) for tensor in inputs}
        place = stream.tick()
        for tensor in _tensors([result]):
            if _key(tensor) not in before:
                _made(tensor, stream, place)
            elif name.endswith("_") and not name.endswith("__"):
                _written[_key(tensor)] = place
        return result


def _made(tensor: torch.Tensor, stream: Stream, place: tuple[int, int]) -> None:
    _written[_key(tensor)], _known[_key(tensor)] = place, {stream.id}


def _check_order(tensor: torch.Tensor, stream: Stream) -> None:
    writer, number = _written.get(_key(tensor), (stream.id, 0))
    if writer != stream.id and max(stream.clock[writer], HOST.clock[writer]) < number:
        COUNTS.wrong("read on a stream that does not wait for the one that wrote it")
    COUNTS.check(
        "used on a stream without record_stream", lambda: stream.id not in _known.get(_key(tensor), {stream.id})
    )


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, (list, tuple)):
        for inner in value:
            yield from _tensors(inner)


def _is_pinned(tensor: torch.Tensor) -> bool:
    return not isinstance(tensor, OnDevice) and _key(tensor) in _pinned


def _host_uses(tensor: torch.Tensor) -> None:
    """Check that no copy still uses pinned memory that the host writes or reads."""
    copies = [copy for copy in _in_use.get(_key(tensor), []) if HOST.clock[copy[2]] < copy[3]]
    _in_use[_key(tensor)] = copies
    start = tensor.data_ptr()
    if any(first < start + tensor.nbytes and start < last for first, last, *_ in copies):
        COUNTS.wrong("pinned memory in use by a copy")


def _on_device(target: Any) -> bool | None:
    """Return whether an argument names the device; None if it names none."""
    if isinstance(target, OnDevice):
        return True
    if isinstance(target, torch.Tensor):
        return False
    if isinstance(target, (str, torch.device)):
        return torch.device(target).type == "cuda"
    return True if isinstance(target, int) and not isinstance(target, bool) else None


def _cross(target: torch.Tensor, source: torch.Tensor, goes_on: bool) -> None:
    """Count a copy between host and device, and note what it uses."""
    stream = current_stream()
    down = isinstance(source, OnDevice)
    host, remote = (target, source) if down else (source, target)
    if down:
        _check_order(remote, stream)
    place = stream.tick()
    if not down:
        _written[_key(remote)] = place
    COUNTS.copied("to_host" if down else "to_device", host.nbytes, _is_pinned(host), waits=not goes_on)
    if _is_pinned(host) and goes_on:
        start = host.data_ptr()
        _in_use.setdefault(_key(host), []).append((start, start + host.nbytes, *place))
    else:
        stream.synchronize()


def _moved(self: torch.Tensor, *args: Any, **kwargs: Any) -> torch.Tensor:
    """Do as ``Tensor.to``."""
    goes_on, copies = kwargs.pop("non_blocking", False), kwargs.pop("copy", False)
    places = [_on_device(value) for value in (*args, kwargs.get("device"), kwargs.get("other"))]
    target = next((place for place in places if place is not None), None)
    dtype = kwargs.get("dtype") or next((a for a in args if isinstance(a, torch.dtype)), None)
    dtype = next((a.dtype for a in (*args, kwargs.get("other")) if isinstance(a, torch.Tensor)), dtype)
    layout = {"memory_format": kwargs["memory_format"]} if kwargs.get("memory_format") is not None else {}
    if target is None or target == isinstance(self, OnDevice):
        return _to(self, dtype or self.dtype, copy=copies, **layout)
    plain = _to(_shares(self.detach(), torch.Tensor), dtype or self.dtype, copy=True, **layout)
    result = _shares(plain, OnDevice) if target else plain
    if target:
        _made(result, current_stream(), current_stream().tick())
    _cross(result, self, goes_on)
    return result


def _copied(self: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    """Do as ``Tensor.copy_``."""
    across = isinstance(self, OnDevice) != isinstance(source, OnDevice)
    if not across:
        if _is_pinned(self):
            _host_uses(self)
        return _copy(self, source)
    with torch.no_grad():
        _copy(_shares(self, torch.Tensor), _shares(source.detach(), torch.Tensor))
    _cross(self, source, non_blocking)
    return self


def _as_numpy(self: torch.Tensor, **options: Any) -> Any:
    if _is_pinned(self):
        _host_uses(self)
    return _numpy(self, **options)


def _factory(make: Callable[..., torch.Tensor], name: str) -> Callable[..., torch.Tensor]:
    def made(*args: Any, **kwargs: Any) -> torch.Tensor:
        """Make a tensor where ``device`` says, in pinned memory if asked."""
        pins, target = kwargs.pop("pin_memory", False), _on_device(kwargs.get("device"))
        kwargs |= {"device": "cpu"} if target else {}
        result = make(*args, **kwargs)
        if pins:
            _pinned[_key(result)] = _storage(result)
        if target and not isinstance(result, OnDevice):
            result = _shares(result, OnDevice)
            _made(result, current_stream(), current_stream().tick())
            if name in _FROM_PYTHON:
                COUNTS.copied("to_device", result.nbytes, pinned=False, waits=True)
        return result

    return made


def _place() -> str:
    frames = traceback.extract_stack(sys._getframe(1), limit=40)
    frame = next((f for f in reversed(frames) if f.filename != _HERE and not f.filename.startswith(_TORCH)), None)
    return "?" if frame is None else f"{'/'.join(Path(frame.filename).parts[-3:])}:{frame.lineno}"


def substitute() -> None:
    """Put the substitute in the place of CUDA, for this process."""
    torch.__future__.set_overwrite_module_params_on_conversion(True)
    torch._has_compatible_shallow_copy_type = lambda *_: False  # modules get new parameters when they move
    for name in _FACTORIES:
        setattr(torch, name, _factory(getattr(torch, name), name))
    torch.Tensor.to, torch.Tensor.copy_, torch.Tensor.numpy = _moved, _copied, _as_numpy  # type: ignore[method-assign]
    torch.Tensor.cuda = lambda self, *_, **o: _moved(self, DEVICE, **o)  # type: ignore[method-assign]
    torch.Tensor.cpu = lambda self, **_: _moved(self, "cpu")  # type: ignore[method-assign]
    torch.Tensor.is_pinned = lambda self, *_: _is_pinned(self)  # type: ignore[method-assign]
    cuda = torch.cuda
    cuda.is_available, cuda.device_count, cuda.current_device = lambda: True, lambda: 1, lambda: 0
    cuda.is_bf16_supported = lambda *_, **__: False
    cuda.set_device = lambda device: COUNTS.chosen.add(threading.current_thread().name)
    cuda.Stream, cuda.Event, cuda.stream = Stream, Event, in_stream
    cuda.current_stream, cuda.default_stream = current_stream, lambda device=None: DEFAULT
    cuda.synchronize = lambda device=None: COUNTS.waited()
