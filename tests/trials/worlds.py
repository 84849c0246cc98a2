"""One cell of a sweep in several worlds, and what has to be the same in them."""

from collections.abc import Sequence

from tests.conftest import Swept
from tests.tools.rank_memory import live_bytes, unnamed
from zerobench.common.vocabulary import Category, Phase, Place, Status, StepKind
from zerobench.config.trial.trial import Evidence
from zerobench.records.records import MemoryRow, RankRecord

WITHIN_STEPS = [(step, phase) for step in StepKind for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.STEP)]
INSTANTS = [(StepKind.FIRST, Phase.INIT), *WITHIN_STEPS]
MODEL_STATES = (
    Category.PARAMETERS,
    Category.GRADIENTS,
    Category.MASTER_WEIGHTS,
    Category.FIRST_MOMENT,
    Category.SECOND_MOMENT,
)
BUFFERS = (
    Category.OTHER_OPTIMIZER_STATES,
    Category.REDUCE_BUFFERS,
    Category.ALL_GATHER_BUFFERS,
    Category.GATHERED_PARAMETERS,
    Category.MODEL_BUFFERS,
)

Worlds = dict[Evidence, RankRecord]


def in_each_world(swept: Swept, **cell: object) -> Worlds:
    """Rank 0 of one cell in each world, all of the same configuration, so that a report finds them together."""
    found = swept.trials(**cell)
    assert {trial.record.status for trial in found} == {Status.COMPLETED}, swept.output
    assert len({trial.spec.config_hash for trial in found}) == 1
    return {trial.spec.evidence: trial.ranks[0] for trial in found}


def check_same_bytes(
    worlds: Worlds,
    evidence: Evidence,
    categories: Sequence[Category] = MODEL_STATES,
    places: Sequence[Sequence[Place]] = (tuple(Place),),
) -> None:
    """To the byte what real ranks hold at each instant, in each of these sets of places."""
    for step, phase in INSTANTS:
        for category in categories:
            for where in places:
                real, other = (
                    live_bytes(worlds[world], category, phase, step, where) for world in (Evidence.MEASURED, evidence)
                )
                assert other == real, (step, phase, category, where)


def nameless(swept: Swept, share: float = 0.01) -> list[tuple[str, MemoryRow]]:
    """What has no name at a peak, of all ranks of all trials."""
    return [
        (trial.spec.trial_id, row)
        for trial in swept.run.trials()
        for rank in trial.ranks
        for row in unnamed(rank, share=share)
    ]
