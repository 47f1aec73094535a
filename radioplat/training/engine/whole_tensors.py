"""Gather values that ranks have in pieces on rank 0, from copies, in a thread that runs beside the training thread."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist

from radioplat.common import collectives
from radioplat.design.memory import SPARE
from radioplat.errors import TrainingError
from radioplat.spec.resolved.zero import BUCKET
from radioplat.training.engine.whole_layout import Piece, WholeLayout

State = dict[str, torch.Tensor]
Values = Sequence[torch.Tensor | None]  # with the shapes of an engine's masters
_REASON = 512  # bytes of the message with which a rank begins: why it has nothing to send, or nothing


class WholeTensors:
    """Copies of values at one step, and the whole tensors made of them.

    :meth:`copy` is called in the training thread, and :meth:`gather` later, in any one thread. In between the values
    may change. Buffers are reused: what :meth:`gather` returns is valid until the next :meth:`copy`.

    On a GPU values are first copied on the device, and to pinned host memory by :meth:`gather`, on a stream of its
    own. If they do not fit there, they go to the host at once, on that stream, and ``hold`` makes the next
    update wait for it.

    Every rank must create one, and call all methods.

    Args:
        shapes: of the parameters, by name.
        pieces: this rank's piece of each parameter; None if it has none.
        hold: called with an event that is recorded once the values may change.
        channel: group of the thread that calls :meth:`gather`; the default group by default.
    """

    def __init__(
        self,
        shapes: Mapping[str, torch.Size],
        pieces: Mapping[str, Piece | None],
        hold: Callable[[torch.cuda.Event], None],
        channel: dist.ProcessGroup | None = None,
    ) -> None:
        self._shapes, self._pieces, self._hold, self._channel = shapes, pieces, hold, channel
        self._rank = 0 if collectives.is_first() else dist.get_rank()
        self._layout = WholeLayout(shapes, collectives.gather_objects(dict(pieces)))
        self._spans = self._layout.spans[self._rank]
        self._buffers: dict[str, torch.Tensor] = {}
        self._copies: dict[str, list[torch.Tensor | None]] | None = None  # on the device, if they fit
        self._values: dict[str, Values] = {}
        self._stream: torch.cuda.Stream | None = None
        self._done: torch.cuda.Event | None = None  # what of this save is recorded on the stream that copies

    def reserve(self, kinds: Sequence[str]) -> None:
        """Allocate the host buffers of these kinds of values before the first step, since pinning memory takes time."""
        for kind in kinds:
            self._buffer(kind)

    @torch.no_grad()
    def copy(self, values: Mapping[str, Values]) -> None:
        """Copy values of any number of kinds, all by name; the caller may change them afterwards."""
        self._values, self._done = dict(values), None
        device = next((v.device for kind in values.values() for v in kind if v is not None), torch.device("cpu"))
        if not self._spans:
            return
        if device.type != "cuda":
            self._to_host(self._values)
            return
        if self._stream is None:
            self._stream = torch.cuda.Stream(device)
            self._copies = self._on_device(device)
        if self._copies is not None:
            try:
                self._copy_on_device(self._copies)
            except torch.OutOfMemoryError:  # values of a kind that the first save did not have
                self._copies = None
        self._stream.wait_stream(torch.cuda.current_stream(device))
        self._done = torch.cuda.Event()
        if self._copies is None:
            with torch.cuda.stream(self._stream):
                self._to_host(self._values)
                self._done.record()
            self._hold(self._done)

    def gather(self) -> dict[str, State]:
        """Return the whole fp32 tensors of each kind by parameter name, on rank 0's CPU; ``{}`` on other ranks.

        A kind lacks the parameters for which rank 0 has None.

        Raises:
            TrainingError: on rank 0, if another rank could not copy its values.
        """
        error = self._finish_copy()
        if self._rank:
            self._send("" if error is None else f"{type(error).__name__}: {error}")
        else:
            # Also after an error: other ranks would otherwise wait until their messages are received.
            reasons = self._receive()
            if error is None and reasons:
                raise TrainingError(reasons[0])
        if error is not None:
            raise error
        return {} if self._rank else {kind: self._whole(kind) for kind in self._values}

    def _finish_copy(self) -> Exception | None:
        """Wait until all values are in host memory; return the error that kept them from it."""
        try:
            if self._done is not None and self._stream is not None:
                if self._copies is not None:
                    with torch.cuda.stream(self._stream), torch.no_grad():
                        self._to_host({kind: self._copies[kind] for kind in self._values})
                        self._done.record()
                self._done.synchronize()
        except Exception as error:  # whatever it is, the other ranks get a message
            return error
        return None

    def _on_device(self, device: torch.device) -> dict[str, list[torch.Tensor | None]] | None:
        """Return an empty dictionary if copies of all values fit the device, else None."""
        needed = sum(v.numel() * v.element_size() for kind in self._values.values() for v in kind if v is not None)
        free, total = torch.cuda.mem_get_info(device)
        # A save right after a roll-back comes before the first step: leave the memory free that steps took before it.
        free -= torch.cuda.max_memory_reserved(device) - torch.cuda.memory_reserved(device)
        return {} if needed <= free - SPARE * total else None

    def _copy_on_device(self, copies: dict[str, list[torch.Tensor | None]]) -> None:
        for kind, values in self._values.items():
            if kind not in copies or [v is None for v in values] != [v is None for v in copies[kind]]:
                copies[kind] = [None if value is None else torch.empty_like(value) for value in values]
            pairs = [(to, v) for to, v in zip(copies[kind], values, strict=True) if to is not None and v is not None]
            torch._foreach_copy_([to for to, _ in pairs], [value.detach() for _, value in pairs])

    def _to_host(self, values: Mapping[str, Values]) -> None:
        """Copy the spans of all kinds into the buffers; a GPU may still be copying when this returns."""
        for kind, flats in values.items():
            buffer, place = self._buffer(kind), 0
            for span in self._spans:
                flat, place = flats[span.flat], span.place if self._rank == 0 else place
                if flat is not None:
                    part = flat.detach().view(-1).narrow(0, span.start, span.size)
                    buffer.narrow(0, place, span.size).copy_(part, non_blocking=True)
                place += span.size

    def _buffer(self, kind: str) -> torch.Tensor:
        """Return the host buffer of a kind: of whole tensors on rank 0, of this rank's spans in a row on others."""
        if kind not in self._buffers:
            size = sum(span.size for span in self._spans) if self._rank else self._layout.size
            self._buffers[kind] = torch.empty(size, dtype=torch.float32, pin_memory=torch.cuda.is_available())
        return self._buffers[kind]

    def _whole(self, kind: str) -> State:
        values, buffer, whole = self._values[kind], self._buffer(kind), {}
        for name, shape in self._shapes.items():
            piece = self._pieces[name]
            if piece is None or values[piece.flat] is not None:
                whole[name] = buffer.narrow(0, self._layout.places[name], shape.numel()).view(shape)
        return whole

    def _send(self, reason: str) -> None:
        """Send this rank's spans to rank 0, or the ``reason`` why there are none."""
        if not self._spans:
            return
        text = torch.zeros(_REASON, dtype=torch.uint8)
        encoded = reason.encode()[:_REASON]
        text[: len(encoded)] = torch.tensor(list(encoded), dtype=torch.uint8)
        collectives.send(text, 0, self._channel)
        for kind in () if reason else self._values:
            for message in self._buffer(kind).split(BUCKET):
                collectives.send(message, 0, self._channel)

    def _receive(self) -> list[str]:
        """Receive the other ranks' spans; return why ranks have sent none."""
        reasons, senders = [], [rank for rank, spans in enumerate(self._layout.spans) if rank and spans]
        for rank in senders:
            text = collectives.receive(torch.zeros(_REASON, dtype=torch.uint8), rank, self._channel)
            reason = bytes(text.tolist()).rstrip(b"\0").decode(errors="replace")
            if reason:
                reasons.append(f"rank {rank} could not copy its weights: {reason}")
                continue
            for kind in self._values:
                self._receive_kind(rank, self._buffer(kind))
        return reasons

    def _receive_kind(self, rank: int, buffer: torch.Tensor) -> None:
        """Receive the spans of one rank and kind, in messages that may end inside a span."""
        spans = self._layout.spans[rank]
        left = sum(span.size for span in spans)
        message = torch.empty(min(BUCKET, left), dtype=torch.float32)
        rest = iter(spans)
        place = size = 0  # of what is still to come of the present span
        while left:
            part = collectives.receive(message[: min(BUCKET, left)], rank, self._channel)
            left -= part.numel()
            while part.numel():
                if not size:
                    _, _, place, size = next(rest)
                now = min(size, part.numel())
                buffer.narrow(0, place, now).copy_(part[:now])
                part, place, size = part[now:], place + now, size - now
