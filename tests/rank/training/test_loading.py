"""Weights read from safetensors: every strategy trains as from drawn ones, and start-up alone holds other bytes."""

from typing import Any

import pytest

from tests.rank.real_ranks import LLAMA, Ranks, RunTrial, Tiny
from tests.report.sample_run import SampleTrial, trial_record
from tests.tools.known import known
from tests.tools.rank_memory import start_up_bytes
from zerobench.common.vocabulary import Category, Place
from zerobench.records.records import RankRecord
from zerobench.report.figures.host_parameters import HeldBytes, Holder, holders

LARGER = LLAMA | {"hidden_size": 256, "intermediate_size": 512, "vocab_size": 2048}
SMALL = {"zero_optimization.reduce_bucket_size": 10**5, "zero_optimization.stage3_param_persistence_threshold": 0}
SMALL |= {"zero_optimization.stage3_prefetch_bucket_size": 10**5}
TOLERANCE = 5e-6
spec = Tiny(LARGER, SMALL, {"steps": {"warmup": 0, "timed": 1, "memory": 1}}).spec


def total(rank: RankRecord) -> int:
    return known(rank.parameters).total


def check_named(ranks: Ranks) -> None:
    for place in (Place.DEVICE, Place.HOST):
        unnamed, whole = (start_up_bytes(ranks[0], one, place) for one in (Category.UNATTRIBUTED, Category.TOTAL))
        assert unnamed <= 0.01 * whole, (place, ranks[0].notes)


def at_load(holder: Holder) -> HeldBytes:
    return known(holder.load)


STRATEGIES: list[dict[str, Any]] = [{"strategy": name} for name in ("ddp", "zero0", "zero1", "zero2", "zero3")]
STRATEGIES += [{"strategy": "zero3", "zero_init": False}, {"strategy": "zero3", "adapter": "lora-8"}]


@pytest.mark.parametrize(
    ("fields", "weights"),
    [
        *((fields, "loaded") for fields in STRATEGIES),
        *(({"strategy": name}, "loaded-fp32") for name in ("ddp", "zero3")),
    ],
    ids=str,
)
def test_it_takes_the_steps_of_a_model_whose_weights_were_drawn(
    ran: RunTrial, fields: dict[str, Any], weights: str
) -> None:
    loaded, drawn = ran(spec(**fields, weights=weights)), ran(spec(**fields))
    assert loaded[0].losses == pytest.approx(drawn[0].losses, abs=TOLERANCE)
    assert len(set(drawn[0].losses)) > 1
    check_named(loaded)


def test_what_is_read_as_it_is_stored_lies_in_the_page_cache_and_fp32_on_every_rank_of_the_host(ran: RunTrial) -> None:
    """4 bytes a parameter on each rank until the weights are moved, though the files hold 2."""
    asked = {"strategy": "zero2", "precision": "bf16"}
    stored, in_fp32 = (ran(spec(**asked, weights=weights)) for weights in ("loaded", "loaded-fp32"))
    for rank in in_fp32:
        assert start_up_bytes(rank, Category.PARAMETERS, Place.HOST) == pytest.approx(4 * total(rank), rel=0.01)
    for rank in stored:
        assert start_up_bytes(rank, Category.PARAMETERS, Place.HOST) == 0
        assert known(rank.mapped_peak_bytes) > 0.9 * 2 * total(rank)
    check_named(in_fp32)
    check_named(stored)
    held = {one.name: one for one in holders(sample(stored, weights="loaded", **asked))}
    assert list(held)[-1] == "files, as page cache"
    assert at_load(held["files, as page cache"]).a_parameter == pytest.approx(
        max(rank.mapped_peak_bytes or 0 for rank in stored) / total(stored[0])
    )
    in_32 = {one.name: one for one in holders(sample(in_fp32, weights="loaded-fp32", **asked))}
    assert at_load(in_32["together"]).a_parameter > at_load(held["together"]).a_parameter + 2
    more = at_load(in_32["together"]).node_bytes - at_load(held["together"]).node_bytes
    assert more == pytest.approx(2 * 4 * total(stored[0]), rel=0.01)  # 4 bytes on each of the node's two ranks


def test_under_zero_init_one_rank_reads_and_each_keeps_its_part(ran: RunTrial) -> None:
    reader, other = ran(spec(strategy="zero3", weights="loaded"))
    assert known(reader.mapped_peak_bytes) >= 4 * total(reader)
    assert other.mapped_peak_bytes == 0
    whole = ran(spec(strategy="zero3", weights="loaded", zero_init=False))[0]
    assert start_up_bytes(other, Category.PARAMETERS, Place.DEVICE) < 0.8 * start_up_bytes(
        whole, Category.PARAMETERS, Place.DEVICE
    )
    assert reader.effective_config["zero_init"] is True
    assert whole.effective_config["zero_init"] is False


def sample(ranks: Ranks, **fields: Any) -> SampleTrial:
    trial = spec(**fields)
    return SampleTrial(trial, trial_record(trial), ranks)


@pytest.mark.parametrize("fields", [{"strategy": "zero2"}, {"strategy": "zero3"}], ids=str)
def test_a_simulated_rank_holds_what_a_measured_one_holds_while_it_loads(ran: RunTrial, fields: dict[str, Any]) -> None:
    for weights in ("loaded", "loaded-fp32"):
        measured = ran(spec(**fields, precision="bf16", weights=weights))[0]
        [simulated] = ran(spec(**fields, precision="bf16", weights=weights, evidence="simulated"))
        for category, place in ((Category.PARAMETERS, Place.HOST), (Category.PARAMETERS, Place.DEVICE)):
            expected = start_up_bytes(measured, category, place)
            assert start_up_bytes(simulated, category, place) == pytest.approx(expected, rel=0.01), (weights, place)
        check_named([simulated])
