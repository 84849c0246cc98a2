"""Counts the collectives and kernels of a rank in each phase: bytes by kind, floating-point operations, their order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from zerobench.common.vocabulary import Phase, StepKind
from zerobench.estimate.clock.trace import CollectiveWait, PhaseStart, Recorder
from zerobench.records.records import CollectiveTraffic, CountedFlops


@dataclass
class Traffic:
    """Collectives and FLOPs of one rank by phase; `phase` is the current one."""

    phase: tuple[StepKind, Phase] | None = None
    _calls: dict[tuple[StepKind, Phase, str, int, int | None], list[int]] = field(default_factory=dict)
    _flops: dict[tuple[StepKind, Phase], int] = field(default_factory=dict)
    is_between: bool = False
    """Whether a step is between two phases: what is issued there belongs to its order, and to no phase's figures."""
    _recorder: Recorder | None = None
    _stream: Callable[[], int] = lambda: 0
    _is_paused: bool = False

    @contextmanager
    def counted(self, step: StepKind, phase: Phase) -> Iterator[None]:
        """Count everything inside as part of `phase`."""
        self.phase = (step, phase)
        if self.issued is not None:
            self.issued.add(PhaseStart(phase.value))
        yield
        self.phase = None

    @contextmanager
    def paused(self) -> Iterator[None]:
        """Leave out of the order what happens inside: the ledger's own work."""
        self._is_paused = True
        yield
        self._is_paused = False

    def forget(self, step: StepKind) -> None:
        """Drop what was counted in a kind of step, so that only its last repetition is reported."""
        self._calls = {key: entry for key, entry in self._calls.items() if key[0] is not step}
        self._flops = {key: flops for key, flops in self._flops.items() if key[0] is not step}
        if self._recorder is not None:
            self._recorder = Recorder(self._recorder.most_items)

    def record_order(self, stream: Callable[[], int], most_items: int | None = None) -> None:
        """Record the issue order of steady steps from now on; `stream` returns the current stream.

        A step of more than `most_items` has no trace.
        """
        self._recorder, self._stream = Recorder(most_items), stream

    @property
    def issued(self) -> Recorder | None:
        """Recorder of the issue order during a steady step, else None."""
        if self._is_paused:
            return None
        is_steady = self.is_between if self.phase is None else self.phase[0] is StepKind.STEADY
        return self._recorder if is_steady else None

    def trace(self) -> str | None:
        """Packed issue order of the steady step (zerobench.estimate.clock.trace); None if it was not recorded."""
        trace = None if self._recorder is None else self._recorder.trace()
        return None if trace is None else trace.pack()

    def collective(
        self, kind: str, group_size: int, message_bytes: int, num_nodes: int | None = None
    ) -> Callable[[], None] | None:
        """Count one call of a collective among `group_size` ranks on `num_nodes` nodes.

        While the issue order is recorded, returns a function to call when the collective is awaited.
        """
        if group_size <= 1:
            return None
        if self.phase is not None:
            entry = self._calls.setdefault((*self.phase, kind, group_size, num_nodes), [0, 0])
            entry[0] += 1
            entry[1] += message_bytes
        if self.issued is None:
            return None
        number = self.issued.call(self._stream(), kind, group_size, num_nodes, message_bytes)
        return lambda: self._awaited(number)

    def _awaited(self, number: int) -> None:
        if self.issued is not None:
            self.issued.add(CollectiveWait(self._stream(), number))

    def add_flops(self, flops: int) -> None:
        """Count floating-point operations of a kernel."""
        if self.phase is not None:
            self._flops[self.phase] = self._flops.get(self.phase, 0) + flops

    def collectives(self) -> list[CollectiveTraffic]:
        """All collectives counted so far."""
        return [
            CollectiveTraffic(
                step=step,
                phase=phase,
                kind=kind,
                group_size=size,
                num_nodes=nodes,
                calls=calls,
                message_bytes=message_bytes,
            )
            for (step, phase, kind, size, nodes), (calls, message_bytes) in self._calls.items()
        ]

    def flops(self) -> list[CountedFlops]:
        """All operations counted so far."""
        return [CountedFlops(step=step, phase=phase, flops=flops) for (step, phase), flops in self._flops.items()]
