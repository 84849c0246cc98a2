"""What a parameter server and its workers move, by the paper's algorithm."""

from zerobench.config.derived.parameter_server import bytes_per_step
from zerobench.config.derived.roles import Role


def test_a_worker_sends_its_gradient_and_gets_the_weights_however_many_there_are() -> None:
    assert [bytes_per_step(1000, workers, Role.WORKER) for workers in (1, 3)] == [2000, 2000]


def test_the_server_moves_what_all_workers_move_together() -> None:
    assert [bytes_per_step(1000, workers, Role.SERVER) for workers in (1, 3)] == [2000, 6000]
