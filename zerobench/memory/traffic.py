"""What a rank hands to collectives and kernels in each phase: bytes by kind, floating-point operations."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field

from zerobench.records import CollectiveTraffic, CountedFlops, Phase, StepKind


@dataclass
class Traffic:
    """Collectives and FLOPs of one rank by phase, while `phase` says which one is under way."""

    phase: tuple[StepKind, Phase] | None = None
    _calls: dict[tuple[StepKind, Phase, str, int, int | None], list[int]] = field(default_factory=dict)
    _flops: dict[tuple[StepKind, Phase], int] = field(default_factory=dict)

    @contextmanager
    def counted(self, step: StepKind, phase: Phase) -> Iterator[None]:
        """Count what happens inside as part of `phase`."""
        self.phase = (step, phase)
        yield
        self.phase = None

    def forget(self, step: StepKind) -> None:
        """Drop what was counted in a kind of step, so that only its last repetition is reported."""
        self._calls = {key: entry for key, entry in self._calls.items() if key[0] is not step}
        self._flops = {key: flops for key, flops in self._flops.items() if key[0] is not step}

    def collective(self, kind: str, group_size: int, message_bytes: int, num_nodes: int | None = None) -> None:
        """One call of a collective among `group_size` ranks, which lie on `num_nodes` nodes."""
        if self.phase is not None and group_size > 1:
            entry = self._calls.setdefault((*self.phase, kind, group_size, num_nodes), [0, 0])
            entry[0] += 1
            entry[1] += message_bytes

    def add_flops(self, flops: int) -> None:
        """Operations of a kernel."""
        if self.phase is not None:
            self._flops[self.phase] = self._flops.get(self.phase, 0) + flops

    def collectives(self) -> list[CollectiveTraffic]:
        """All that was heard."""
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
        """All that was counted."""
        return [CountedFlops(step=step, phase=phase, flops=flops) for (step, phase), flops in self._flops.items()]
