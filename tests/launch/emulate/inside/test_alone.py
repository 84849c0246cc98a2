"""torch.distributed with one rank there: whoever is asked for, nobody is waited for."""

import os
import subprocess
import sys

from zerobench.config.hardware.hardware import known_gpu
from zerobench.emulator.gpu import EmulatedGpu
from zerobench.launch.emulate.part import PART_VARIABLE, Account, End, Part

SCRIPT = """
import datetime, threading, torch, torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh

mesh = init_device_mesh("cuda", (8, 8), mesh_dim_names=("dp", "tp"))
assert (*mesh.get_coordinate(), mesh["tp"].size()) == (7, 7, 8), mesh.get_coordinate()
dist.destroy_process_group()
dist.init_process_group("cpu:gloo,cuda:nccl", init_method="tcp://10.0.0.1:1234", timeout=datetime.timedelta(seconds=5))
assert (dist.get_rank(), dist.get_world_size(), dist.get_backend()) == (63, 64, "cpu:gloo,cuda:nccl")
for device in ("cpu", "cuda"):
    one = torch.full((4,), 3.0, device=device)
    dist.broadcast(one, src=0)
    dist.all_reduce(one, op=dist.ReduceOp.MAX)
    whole = [torch.empty(4, device=device) for _ in range(64)]
    dist.all_gather(whole, one)
    assert whole[5].tolist() == [3.0] * 4, (device, whole[5])
dist.barrier()
hosts = dist.new_group(list(range(56, 64)), backend="gloo")
assert dist.get_backend(hosts) == "gloo"
dist.monitored_barrier(hosts)
dist.all_reduce(torch.ones(2), group=hosts)
assert dist.new_group(list(range(8))) is dist.GroupMember.NON_GROUP_MEMBER
everybody = [None] * 64
dist.all_gather_object(everybody, {"here": 1})
assert everybody[0] == {"here": 1} and everybody[0] is not everybody[1]
said = [None]
dist.broadcast_object_list(said, src=0)
store = dist.TCPStore("10.0.0.1", 1234, 64, is_master=False)
store.set("key", b"value")
assert store.get("key") == b"value"
print("groups stand")

def train():
    model = torch.nn.Linear(64, 64).cuda()
    optimizer = torch.optim.SGD(model.parameters())
    while True:
        model(torch.ones(4, 64, device="cuda")).sum().backward()
        optimizer.step()

thread = threading.Thread(target=train)
thread.start()
try:
    thread.join()
    print("the thread ended before the main one was told")
finally:
    print("exit hooks run")
"""


def test_the_last_rank_meets_nobody_and_a_training_in_a_thread_ends_the_script(emulator, tmp_path):
    (tmp_path / "train.py").write_text(SCRIPT)
    part = Part(
        command=["torchrun", "train.py"],
        rank=63,
        world_size=64,
        ranks_per_node=8,
        gpu="H200 SXM",
        host_memory_bytes=None,
        steps=2,
        account=tmp_path / "account.json",
        under_ledger=False,
        speaks=False,
    )
    (tmp_path / "part.json").write_text(part.model_dump_json())
    variables = emulator.variables(EmulatedGpu.build(known_gpu("h200")), 8)
    done = subprocess.run(
        [sys.executable, "-m", "zerobench.launch.emulate.inside"],
        cwd=tmp_path,
        env={**os.environ, **variables, PART_VARIABLE: str(tmp_path / "part.json")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-2:] == ["groups stand", "exit hooks run"]
    assert "Traceback" not in done.stderr
    account = Account.model_validate_json((tmp_path / "account.json").read_bytes())
    assert (account.end, account.num_steps, account.touched_device) == (End.STOPPED, 2, True)
