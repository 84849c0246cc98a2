"""Takes down the order in which a rank without a device issues its steady step (zerobench.estimate.clock.trace)."""

from collections.abc import Callable

from zerobench.estimate.clock import trace
from zerobench.estimate.clock.trace import DeviceWork, Host, HostCopy, Item, PageMapping
from zerobench.rank.ledger.costs import Cost, Where
from zerobench.rank.ledger.traffic import Traffic

_SMALL_BYTES = 1 << 16
"""Of host work that takes no time to speak of: step counters, a norm."""


class Order:
    """Hears what each operation costs, and what no operation shows: waits, updates on the host, drives."""

    def __init__(
        self, traffic: Traffic, stream: Callable[[], int], *, on_gpu: bool = True, most_items: int | None = None
    ) -> None:
        """`stream` says which stream is current; not `on_gpu`: the processor is the device. A step of more than
        `most_items` has no trace.
        """
        self._traffic, self._stream, self._on_gpu = traffic, stream, on_gpu
        traffic.record_order(stream, most_items)
        trace.listen(self.issue)

    @property
    def is_open(self) -> bool:
        """Whether a steady step is under way."""
        return self._traffic.issued is not None

    def issue(self, item: Item | DeviceWork) -> None:
        """What no operation shows."""
        if self._traffic.issued is None:
            return
        if isinstance(item, DeviceWork):
            self._traffic.issued.kernel(self._stream(), moved_bytes=item.moved_bytes, launches=item.launches)
        else:
            self._traffic.issued.add(item)

    def attention(self, flops: int, *, is_backward: bool, kind: trace.Attention | None = None) -> None:
        """A fused kernel of attention."""
        if self._traffic.issued is not None:
            self._traffic.issued.attention(self._stream(), flops, is_backward=is_backward, kind=kind)

    def charge(self, cost: Cost, dtype: str = "") -> None:
        """An operation. `dtype` of its products; empty: the trial's precision."""
        issued, stream = self._traffic.issued, self._stream()
        if issued is None:
            return
        if cost.attention_flops:
            issued.attention(stream, cost.attention_flops, is_backward=cost.is_backward)
        elif cost.where is Where.DEVICE or not self._on_gpu:
            issued.kernel(stream, cost.product, cost.moved_bytes, cost.times, dtype=dtype)
        elif cost.where is Where.HOST:
            self._on_host(issued, cost.moved_bytes, cost.mapped_bytes)
        else:
            is_up = cost.where is Where.UP
            copied = HostCopy(stream, is_up, cost.moved_bytes, cost.blocks, is_paged=cost.cast_bytes > 0)
            if not is_up:
                issued.add(copied)
            self._on_host(issued, cost.cast_bytes, cost.mapped_bytes)
            if is_up:
                issued.add(copied)

    def _on_host(self, issued: trace.Recorder, nbytes: int, mapped_bytes: int) -> None:
        if nbytes > _SMALL_BYTES:
            issued.add(Host(nbytes))
        if mapped_bytes:
            issued.add(PageMapping(mapped_bytes))
