"""The comparison of ways to train as rows: a server among them has no losses of its own."""

from tests.report.strategies.figures import figures, rows, spec
from zerobench.report.frames import schema
from zerobench.report.frames.joined_tables import strategies_frame


def test_a_row_says_what_the_comparison_says() -> None:
    found = rows(figures(spec("single", 1), 2.0), figures(spec("ddp", 4), 0.8))
    table = strategies_frame(found).to_dict("records")
    assert [row["speed_up"] for row in table] == [row.speed_up for row in found]
    assert [row["losses"] for row in table] == [row.verdict for row in found]
    assert [row["world_size"] for row in table] == [1, 4]
    assert list(strategies_frame(found)) == list(schema.COMPARED)


def test_a_server_has_neither_a_verdict_on_losses_nor_a_distance_of_them_or_of_norms() -> None:
    sides = [figures(spec("single", 1), 2.0), figures(spec("ddp", 2), 1.0)]
    sides.append(figures(spec("parameter-server", 3), 1.0, role="server"))
    distances = {"single n1": 0.0, "ddp n2": 1e-7, "parameter-server n3": 1e-7}
    table = strategies_frame(rows(*sides, parity=distances, norm=3e-4)).set_index("strategy")
    assert table["losses"].isna().to_dict() == {"single": False, "ddp": False, "parameter-server": True}
    assert table["loss_difference"].isna().to_dict() == {"single": False, "ddp": False, "parameter-server": True}
    assert table.loc["ddp", "loss_difference"] == 1e-7
    assert table["norm_difference"].isna().to_dict() == {"single": False, "ddp": False, "parameter-server": True}
    assert table.loc["ddp", "norm_difference"] == 3e-4
