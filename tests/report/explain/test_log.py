"""What a log alone says of memory that ran out.

The messages are shortened from real threads, named at each.
"""

from __future__ import annotations

import pytest

from zerobench.errors import UserError
from zerobench.report.explain.kill_message import killed_in
from zerobench.report.explain.log import explain_log
from zerobench.report.explain.topic import as_data, as_text
from zerobench.report.explain.torch_message import Frame, messages_in
from zerobench.report.explain.who_asked import asker_of, phase_of

_MIB, _GIB = 2**20, 2**30

# torch 2.0: Instruction-Tuning-with-GPT-4/GPT-4-LLM#16, ZeRO-3 on two A100
TORCH_2_0 = (
    "OutOfMemoryError: CUDA out of memory. Tried to allocate 172.00 MiB (GPU 0; 79.35 GiB total capacity; 73.95 GiB"
    " already allocated; 12.19 MiB free; 76.80 GiB reserved in total by PyTorch) If \nreserved memory is >> allocated"
)
# torch 2.1: carolchenyx/MGFN#35
TORCH_2_1 = (
    "torch.cuda.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.70 GiB. GPU 0 has a total capacty of 6.00 GiB"
    " of which 0 bytes is free. Of the allocated memory 2.93 GiB is allocated by PyTorch, and 2.30 GiB is reserved by"
    " PyTorch but unallocated. If reserved but"
)
# torch 2.5 and up: modelscope/ms-swift#5943; a container, in which NVML knows no sizes of processes
TORCH_2_5 = (
    "[rank3]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.63 GiB. GPU 3 has a total capacity of"
    " 79.11 GiB of which 2.61 GiB is free. Including non-PyTorch memory, this process has 0 bytes memory in use. Of the"
    " allocated memory 48.16 GiB is allocated by PyTorch, with 50.00 MiB allocated in private pools (e.g., CUDA"
    " Graphs), and 3.48 GiB is reserved by PyTorch but unallocated."
)
# hiyouga/LlamaFactory#7532: ZeRO-3, the first update of a model of 236 B
FIRST_UPDATE = """\
[rank0]: Traceback (most recent call last):
[rank0]:   File "/opt/llamafactory/launcher.py", line 23, in <module>
[rank1]: Traceback (most recent call last):
[rank1]:   File "/opt/site-packages/deepspeed/runtime/engine.py", line 2162, in _take_model_step
[rank0]:   File "/opt/site-packages/torch/nn/modules/module.py", line 1747, in _call_impl
[rank1]:   File "/opt/site-packages/deepspeed/runtime/zero/stage3.py", line 947, in _optimizer_step
[rank1]: torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 3.39 GiB. GPU 1 has a total capacity of 79.32\
 GiB of which 0.40 GiB is free. Including non-PyTorch memory, this process has 76.92 GiB memory in use. Of the\
 allocated memory 73.28 GiB is allocated by PyTorch, and 1.59 GiB is reserved by PyTorch but unallocated.
"""


@pytest.mark.parametrize(
    ("text", "asked", "total", "free", "allocated", "unallocated", "in_pieces"),
    [
        (TORCH_2_0, 172 * _MIB, 79.35, 12.19 / 1024, 73.95, 2.85, True),
        (TORCH_2_1, 1.70 * _GIB, 6.0, 0, 2.93, 2.30, True),
        (TORCH_2_5, 2.63 * _GIB, 79.11, 2.61, 48.16, 3.48, True),
        (FIRST_UPDATE, 3.39 * _GIB, 79.32, 0.40, 73.28, 1.59, False),
        (TORCH_2_1.replace("CUDA out", "HIP out"), 1.70 * _GIB, 6.0, 0, 2.93, 2.30, True),
    ],
)
def test_every_wording_of_torch_gives_the_same_figures(
    text: str, asked: float, total: float, free: float, allocated: float, unallocated: float, *, in_pieces: bool
) -> None:
    [found] = messages_in(text)
    told = (found.asked_bytes, found.total_bytes, found.free_bytes, found.allocated_bytes, found.unallocated_bytes)
    for read, meant in zip(
        told, (asked, *(size * _GIB for size in (total, free, allocated, unallocated))), strict=True
    ):
        assert read == pytest.approx(meant, abs=2)
    assert found.is_in_pieces is in_pieces


def test_what_lies_outside_torch_and_in_private_pools_is_told_apart() -> None:
    [graphs], [update] = messages_in(TORCH_2_5), messages_in(FIRST_UPDATE)
    assert (graphs.private_pools_bytes, graphs.outside_torch_bytes, graphs.rank) == (50 * _MIB, None, 3)
    assert update.outside_torch_bytes == pytest.approx(2.05 * _GIB, abs=4)


def test_a_rank_s_own_traceback_says_what_asked_though_others_stand_between_its_lines() -> None:
    [found] = messages_in(FIRST_UPDATE)
    assert [frame.function for frame in found.frames] == ["_take_model_step", "_optimizer_step"]
    said = as_text(explain_log(FIRST_UPDATE, "log.txt"), 200)
    assert "Full: 1.40 GiB missing" in said
    assert "Phase: the update." in said
    assert "failed on rank 1" in said


_ENGINE, _STAGE_3 = "deepspeed/runtime/engine.py", "deepspeed/runtime/zero/stage3.py"
_BACKWARD = (("train.py", "main"), (_ENGINE, "backward"), (_STAGE_3, "backward"), ("torch/_tensor.py", "backward"))


@pytest.mark.parametrize(
    ("frames", "phase", "words"),
    [
        ((*_BACKWARD, ("torch/autograd/graph.py", "_engine_run_backward")), "backward", "gradients of activations"),
        (
            (*_BACKWARD, ("torch/autograd/graph.py", "_engine_run_backward"), (_STAGE_3, "__avg_scatter_grads")),
            "backward",
            "for the reduction",
        ),
        (
            (
                *_BACKWARD,
                ("torch/autograd/graph.py", "_engine_run_backward"),
                ("deepspeed/runtime/zero/partitioned_param_coordinator.py", "__all_gather_params"),
            ),
            "backward",
            "gathered parameters",
        ),
        (
            (
                ("deepspeed/__init__.py", "initialize"),
                (_ENGINE, "_configure_distributed_model"),
                ("torch/nn/modules/module.py", "_apply"),
            ),
            "initialisation",
            "moved the whole model",
        ),
        (
            (
                ("transformers/trainer.py", "train"),
                (_ENGINE, "forward"),
                ("transformers/models/llama/modeling_llama.py", "forward"),
                ("transformers/loss/loss_utils.py", "ForCausalLMLoss"),
            ),
            "forward",
            "logits",
        ),
        (
            ((_ENGINE, "forward"), ("transformers/models/llama/modeling_llama.py", "forward")),
            "forward",
            "activations of the forward pass",
        ),
        (
            (
                ("deepspeed/__init__.py", "initialize"),
                (_STAGE_3, "initialize_optimizer_states"),
                ("torch/optim/adamw.py", "step"),
            ),
            "initialisation",
            "updated",
        ),
    ],
)
def test_the_frames_of_a_traceback_name_phase_and_asker(
    frames: tuple[tuple[str, str], ...], phase: str, words: str
) -> None:
    stack = [Frame(f"/opt/site-packages/{file}", 1, function) for file, function in frames]
    asker = asker_of(stack)
    assert phase_of(stack) == phase
    assert asker is not None
    assert words in asker.does


@pytest.mark.parametrize(
    ("text", "is_proved", "resident"),
    [
        # deepspeedai/DeepSpeed#3160
        ("[ERROR] [launch.py:324:sigkill_handler] ['python', 'run_clm.py'] exits with return code = -9", False, None),
        ("  exitcode  : -9 (pid: 4242)", False, None),
        ("run.sh: line 3:  4242 Killed                  python train.py", False, None),
        ("slurmstepd: error: Detected 1 oom_kill event in StepId=12.0. Some of the step tasks", True, None),
        (
            "Memory cgroup out of memory: Killed process 4242 (python) total-vm:9kB, anon-rss:2097152kB, file-rss:0kB",
            True,
            2 * _GIB,
        ),
        ("Last State: Terminated, Reason: OOMKilled, Exit Code: 137", True, None),
    ],
)
def test_a_kill_is_proved_by_the_word_of_who_killed_alone(text: str, resident: int | None, *, is_proved: bool) -> None:
    found = killed_in(f"step 3 loss 2.1\n{text}\n")
    assert found is not None
    assert (found.proof is not None, found.resident_bytes) == (is_proved, resident)
    said = as_data(explain_log(text, "log.txt"))["passages"][0]["title"]
    assert said == ("Host memory ran out" if is_proved else "A process was killed")


def test_deepspeed_s_last_reading_of_host_memory_is_told_with_a_kill() -> None:
    head = "[2023-04-07 13:08:55,468] [INFO]"
    log = (
        f"{head} [utils.py:829:see_memory_usage] Before initializing optimizer states\n"
        f"{head} [utils.py:830:see_memory_usage] MA 11.76 GB         Max_MA 11.76 GB\n"
        f"{head} [utils.py:838:see_memory_usage] CPU Virtual Memory:  used = 28.43 GB, percent = 22.6%\n"
        "['/usr/bin/python3', '-u', 'run_clm.py'] exits with return code = -9\n"
    )
    found = killed_in(log)
    assert found is not None
    assert found.last_reading == "28.43 GB used, 22.6 % of the machine's (Before initializing optimizer states)"


def test_a_log_without_a_word_of_memory_is_refused_in_one_line() -> None:
    with pytest.raises(UserError, match="no out-of-memory message"):
        explain_log("Exception: nobody was Killed by this\nloss 3.2", "log.txt")


def test_a_refusal_of_the_hosts_is_told_in_a_whole_sentence() -> None:
    line = (
        "RuntimeError: [enforce fail at alloc_cpu.cpp:117] data. DefaultCPUAllocator: can't allocate memory: you tried"
    )
    text = as_text(
        explain_log(f"{line} to allocate 85899345920 bytes. Error code 12 (Cannot allocate memory)\n", "log")
    )
    assert "Out of host memory\n  requested: 80.00 GiB" in text
    told = " ".join(text.partition("Diagnosis")[2].split())
    assert told.startswith(
        "The operating system gave torch no host memory: a limit (ulimit, a control group) or the machine's memory is "
        "reached."
    )


@pytest.mark.parametrize("words", ["Cuda failure 2 'out of memory'", "NCCL WARN Cuda failure 'out of memory'"])
def test_nccl_that_the_driver_refused_is_named(words: str):
    text = f"ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n{words}\n"
    assert [topic.title for topic in explain_log(text, "log")] == ["NCCL is out of GPU memory"]
