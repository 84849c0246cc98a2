"""Seconds of computing in one micro-batch's passes through a decoder: a block forward and backward, and the head."""

from __future__ import annotations

from dataclasses import dataclass, replace

from zerobench.config.models.architecture import complete, dimensions
from zerobench.config.models.parameters import count_parameters
from zerobench.config.models.tensors import has_separate_queries
from zerobench.config.trial.model import ModelSpec
from zerobench.estimate.clock.device import Device
from zerobench.estimate.clock.host import BEFORE_BLOCKS, QUEUED_LAUNCHES, BlockIssue, block_issue
from zerobench.estimate.clock.kernels import WORD_BYTES, attention_s, linear_s, moved_s
from zerobench.estimate.clock.rates import Rates
from zerobench.estimate.time.timing_tuned import Tuned, TunedMatrix


@dataclass(frozen=True)
class Decoder:
    """The sizes of a decoder's block and head."""

    layers: int
    hidden: int
    attention_width: int
    """Heads times their size."""
    qkv_width: int
    """Queries, keys and values together."""
    mlp_width: int
    mlp_matrices: int
    """Two, or three where a gate is multiplied in."""
    vocabulary: int
    is_apart: bool = False
    """Whether queries, keys, values and a gate are products of their own, whose tiles count in narrow ones."""

    @property
    def is_gated(self) -> bool:
        """Whether a gate is multiplied in."""
        return self.mlp_matrices > 2

    def cut(self, parts: int) -> Decoder:
        """One of `parts` parts, as tensor parallelism cuts it: heads, the MLP's width and the head's vocabulary are
        divided, the hidden states between them whole.
        """
        names = ("attention_width", "qkv_width", "mlp_width", "vocabulary")
        return replace(self, is_apart=True, **{name: -(-getattr(self, name) // parts) for name in names})


def decoder_of(spec: ModelSpec) -> Decoder | None:
    """The decoder of `spec`; None for mixtures of experts, and where a size is not known."""
    sizes, counts = dimensions(spec), count_parameters(spec)
    known = (sizes.num_layers, sizes.hidden_size, sizes.num_heads, sizes.num_kv_heads, sizes.head_dim, sizes.vocab_size)
    if counts is None or None in known or complete(spec).get("num_local_experts"):
        return None
    layers, hidden, heads, kv_heads, head_dim, vocabulary = (int(size or 0) for size in known)
    inner = sizes.intermediate_size or 4 * hidden
    per_layer = round(counts.mlp / (layers * hidden * inner))
    qkv_width = (heads + 2 * kv_heads) * head_dim
    return Decoder(
        layers, hidden, heads * head_dim, qkv_width, inner, per_layer, vocabulary, has_separate_queries(spec)
    )


HEAD_FORWARD_SHARE = 1 / 3
"""Of a head and its loss that are not run by chunks."""


@dataclass(frozen=True)
class Passes:
    """Seconds of computing of one micro-batch, communication apart."""

    block_forward_s: float
    block_backward_s: float
    """With what is computed again before it."""
    layers: int
    head_s: float
    """Output head and loss, forward and backward."""
    head_forward_share: float = HEAD_FORWARD_SHARE
    """Of it, in the forward pass."""
    idle_forward_s: float = 0.0
    """Of a block's forward pass, in which the device waits for the host."""
    idle_backward_s: float = 0.0
    issued_s: tuple[float, float] = (0.0, 0.0)
    """In which the host issues a block forward and backward."""
    ahead_s: float = 0.0
    """By which the host is ahead of the device when the backward pass ends."""
    reducing_issued_s: float = 0.0
    """In which the host issues what reduces gradients after it (BlockIssue.reduced)."""
    before_s: float = 0.0
    """In which the host issues what comes before the blocks, and waits for the first gather then."""
    after_s: float = 0.0
    """In which the host issues what follows the reduction of all gradients in one bucket."""
    room_s: float = 0.0
    """By how much more the host could be ahead as backward begins, had the device waited for something else before."""

    @property
    def forward_s(self) -> float:
        """All blocks and the head's part."""
        return self.layers * self.block_forward_s + self.head_forward_share * self.head_s

    @property
    def backward_s(self) -> float:
        """All blocks and the rest of the head."""
        return self.layers * self.block_backward_s + (1 - self.head_forward_share) * self.head_s


def passes(
    decoder: Decoder,
    device: Device,
    tokens: int,
    positions: int,
    *,
    recomputed: float = 0.0,
    kept_s: float = 0.0,
    tuned: Tuned | None = None,
    head_rows: int | None = None,
    head_launches: float = 0.0,
    runs_all: bool = True,
    is_awaited: bool = False,
    issue: BlockIssue | None = None,
) -> Passes:
    """The passes of `tokens` tokens in sequences of `positions`; `recomputed` is the share of blocks run forward again,
    but for `kept_s` of their computing.

    `tuned` says what is trained, where it is not all; its blocks may differ, and all count as their mean. Head and loss
    are of `head_rows` tokens at a time, gradients with them, where they are not of all at once. The host issues a
    block's kernels as `issue` says, FSDP's where it is left out (host.py), and `head_launches` outside of blocks: small
    work waits for it. What the GPU was behind the host in forward, and in the head, the host is ahead when backward
    begins, as far as the queue of launches goes; by one block where it awaits each (`is_awaited`), and not at all where
    others run the head (`runs_all`).
    """
    forward, backward = _block(decoder, device, tokens, positions, tuned)
    matrix = TunedMatrix(decoder.hidden, decoder.vocabulary, True, True) if tuned is None else tuned.head
    rows = head_rows or tokens
    products = tokens / rows * sum(matrix.products_s(device, rows))
    head = device.rates.in_programs * (products + moved_s(device, loss_bytes(decoder, device.rates, tokens)))
    issue = issue or block_issue("fsdp", is_gated=decoder.is_gated)
    in_pass = issue.backward.less(issue.reduced)
    launches, passed = (1.0, 1.0) if tuned is None else (tuned.launches, tuned.passed_share)
    issued, issued_backward = (
        0.0 if device.host is None else part.times(times).seconds(device.host)
        for part, times in ((issue.forward, launches), (in_pass, launches * passed))
    )
    ahead = max(forward, issued) - issued
    if runs_all:
        launch_s = 0.0 if device.host is None else device.host.launch_s
        queued_s = min(decoder.layers * ahead, QUEUED_LAUNCHES * launch_s)
        head = max(head, head_launches * launch_s - queued_s)
        ahead += min(head - head_launches * launch_s, head * QUEUED_LAUNCHES / max(1.0, head_launches)) / decoder.layers
    launched_backward = launches * (passed * in_pass.launches + recomputed * issue.forward.launches)
    queued = QUEUED_LAUNCHES / (decoder.layers * launched_backward) if launched_backward else 0.0
    issued_backward += recomputed * issued
    computed_backward = backward + recomputed * (forward - kept_s)
    used = min(ahead, (1 / decoder.layers if is_awaited else queued) * issued_backward)
    late_backward = issued_backward - used
    return Passes(
        max(forward, issued),
        max(computed_backward, late_backward),
        decoder.layers,
        head,
        HEAD_FORWARD_SHARE if head_rows is None else 1.0,
        max(0.0, issued - forward),
        max(0.0, late_backward - computed_backward),
        (issued, issued_backward),
        decoder.layers * max(0.0, computed_backward - late_backward),
        0.0 if device.host is None else decoder.layers * issue.reduced.times(launches * passed).seconds(device.host),
        BEFORE_BLOCKS * issued / max(1.0, launches * issue.forward.launches),
        decoder.layers * issued_backward * issue.after_launches / max(1.0, launched_backward),
        decoder.layers * max(0.0, min(1.0, queued) * issued_backward - used),
    )


def _block(decoder: Decoder, device: Device, tokens: int, positions: int, tuned: Tuned | None) -> tuple[float, float]:
    """A block's kernels forward and backward, one after another."""
    attending, passed = (1.0, 1.0) if tuned is None else (tuned.attending_share, tuned.passed_share)
    if tuned is None:
        times = [linear_s(device, tokens, inputs, outputs) for inputs, outputs in linears(decoder)]
    else:
        forward, backward = tuned.matrices_s(device, tokens)
        times = [(forward / decoder.layers, backward / decoder.layers)]
    forward, backward = attention_s(device, tokens, positions, decoder.attention_width)
    times.append((forward, attending * backward))
    moved_forward, moved_backward = elementwise_bytes(decoder, device.rates, tokens)
    times.append((moved_s(device, moved_forward), passed * moved_s(device, moved_backward)))
    longer = device.rates.in_programs
    return longer * sum(forward for forward, _ in times), longer * sum(backward for _, backward in times)


def linears(decoder: Decoder) -> list[tuple[int, int]]:
    """Inputs and outputs of a block's matrices; a gate's product is launched with its neighbour's, if not apart."""
    hidden, inner = decoder.hidden, decoder.mlp_width
    if decoder.is_apart:
        attention, keys = decoder.attention_width, (decoder.qkv_width - decoder.attention_width) // 2
        apart = [attention, keys, keys, *[inner] * (decoder.mlp_matrices - 1)]
        return [*((hidden, outputs) for outputs in apart), (attention, hidden), (inner, hidden)]
    return [
        (hidden, decoder.qkv_width),
        (decoder.attention_width, hidden),
        (inner, hidden),
        (hidden, (decoder.mlp_matrices - 1) * inner),
    ]


def elementwise_bytes(decoder: Decoder, rates: Rates, tokens: float) -> tuple[float, float]:
    """That a block's elementwise work moves, forward and backward."""
    moved = tokens * elementwise_width(decoder) * WORD_BYTES
    return rates.forward_words * moved, rates.backward_words * moved


def loss_bytes(decoder: Decoder, rates: Rates, tokens: float) -> float:
    """That the loss and its gradient move."""
    return rates.loss_words * tokens * decoder.vocabulary * WORD_BYTES


def elementwise_width(decoder: Decoder) -> float:
    """The hidden size, made larger where the MLP is wider than the GPT's four-fold one that the words were fitted on.

    About half of a block's elementwise work is at the hidden size (norms, residuals), half at the MLP's width, twice
    where a gate is multiplied in.
    """
    widths = decoder.mlp_width * (decoder.mlp_matrices - 1)
    return decoder.hidden / 2 + widths / 8
