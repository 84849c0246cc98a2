"""torch.distributed with nobody else there: gloo's groups complete at once, whoever asks for one."""

from tests.rank.conftest import in_fork  # noqa: F401 -- pytest finds it here


def join_alone():
    """Rank 63 of 64 on the host, by gloo; what it was told."""
    import torch
    import torch.distributed as dist

    from zerobench.emulator.inside.absent_peers import AbsentPeers, instant_cpu_groups

    instant_cpu_groups()
    store = AbsentPeers()
    dist.init_process_group("gloo", store=store, rank=63, world_size=64)
    one = torch.full((4,), 3.0)
    dist.all_reduce(one)
    whole = [torch.empty(4) for _ in range(64)]
    dist.all_gather(whole, one)
    hosts = dist.new_group(list(range(56, 64)), None, "gloo")  # by position, as some ask
    dist.barrier(hosts)
    said = [one.tolist(), whole[5].tolist(), hosts.size(), dist.get_backend(hosts)]
    dist.destroy_process_group()
    return said


def test_a_rank_alone_is_one_of_any_number_and_waits_for_none(in_fork):  # noqa: F811
    assert in_fork(join_alone) == [[3.0] * 4, [3.0] * 4, 8, "gloo"]
