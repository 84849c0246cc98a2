"""From the instants that formulas name to the ledger's rows: activations laid over states, peaks found.

A phase is a list of instants of which the last is its end. Its peak is the instant whose sum is largest, so that the
categories at the peak sum to the total as they do in a measured ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from zerobench.common.vocabulary import Category, Phase, Place, StepKind
from zerobench.estimate.memory.deepspeed.setting import Instants
from zerobench.estimate.memory.terms.activations import Activations, Logits
from zerobench.estimate.memory.terms.terms import Bytes, add, hold
from zerobench.records.records import MemoryRow


def device_phases(
    instants: Instants,
    kept: Activations,
    logits: Logits,
    input_tokens: int,
    left: Callable[[int], Bytes] = lambda _: {},
    in_block: Bytes | None = None,
) -> dict[Phase, list[Bytes]]:
    """Instants of each phase on the device; forward and backward with what a micro batch leaves for backward.

    The token ids of all micro batches, int64, live until the step's end. `left`: what a pass leaves of its tensors when
    there are gradients of so many elements. `in_block`: the most that lies there while blocks are passed, in place of
    what is said of the last one's activations by themselves.
    """
    inputs = hold(Category.INPUTS, 8 * input_tokens, f"token ids: 8 bytes x {input_tokens:,} tokens")
    saved = add(inputs, {Category.ACTIVATIONS: kept.saved_bytes})
    layer = {Category.ACTIVATIONS: kept.recomputed_bytes, Category.TEMPORARIES: kept.made_whole_bytes}
    beside_loss = add(saved, {Category.GRADIENTS: logits.head_gradient_bytes})
    headed = add(instants.forward, beside_loss)
    begun = headed if instants.begun is None else add(instants.begun, beside_loss)
    beside = {Category.TEMPORARIES: logits.input_gradient_bytes}
    passed_block = add(instants.bucketed, saved, layer) if in_block is None else add(in_block, inputs)
    return {
        Phase.INIT: list(instants.init),
        Phase.FORWARD: [
            add(instants.gathering, saved),
            add(headed, beside, _loss(logits.forward_peak_bytes)),
            add(headed, _loss(logits.saved_bytes)),
        ],
        Phase.BACKWARD: [
            add(begun, _loss(logits.backward_peak_bytes)),
            add(instants.first_gradient, saved, _loss(logits.gradient_bytes)),
            passed_block,
            *(add(instant, inputs, left(passed)) for passed, instant in instants.filled.items()),
            *(add(instant, inputs) for instant in instants.reduction),
            add(instants.backward_end, inputs),
        ],
        Phase.STEP: [add(instant, inputs) for instant in instants.step],
    }


def _loss(nbytes: int) -> Bytes:
    return {Category.LOGITS_AND_LOSS: nbytes}


def other_phases(instants: Instants) -> dict[Phase, list[Bytes]]:
    """Instants of each phase in host memory or swap files, where no activation lies."""
    return {
        Phase.INIT: list(instants.init),
        Phase.FORWARD: [instants.gathering, instants.forward],
        Phase.BACKWARD: [instants.forward, instants.bucketed, *instants.reduction, instants.backward_end],
        Phase.STEP: list(instants.step),
    }


def memory_rows(step: StepKind, place: Place, phases: Mapping[Phase, Sequence[Bytes]]) -> list[MemoryRow]:
    """The rows of one step in one place, init in the first step alone; none where nothing lies there at all."""
    asked = {phase: instants for phase, instants in phases.items() if phase is not Phase.INIT or step is StepKind.FIRST}
    if not any(any(instant.values()) for instants in asked.values() for instant in instants):
        return []
    return [row for phase, instants in asked.items() for row in _phase_rows(step, phase, place, instants)]


def _phase_rows(step: StepKind, phase: Phase, place: Place, instants: Sequence[Bytes]) -> list[MemoryRow]:
    peak = max(instants, key=lambda instant: sum(instant.values()))
    present = [category for category in Category if any(category in instant for instant in instants)]
    rows = [
        MemoryRow(
            step=step,
            phase=phase,
            place=place,
            category=category,
            live_bytes=instants[-1].get(category, 0),
            at_peak_bytes=peak.get(category, 0),
            own_peak_bytes=max(instant.get(category, 0) for instant in instants),
        )
        for category in present
    ]
    return [*rows, _total(step, phase, place, sum(instants[-1].values()), sum(peak.values()))]


def _total(step: StepKind, phase: Phase, place: Place, live_bytes: int, peak_bytes: int) -> MemoryRow:
    return MemoryRow(
        step=step,
        phase=phase,
        place=place,
        category=Category.TOTAL,
        live_bytes=live_bytes,
        at_peak_bytes=peak_bytes,
        own_peak_bytes=peak_bytes,
    )
