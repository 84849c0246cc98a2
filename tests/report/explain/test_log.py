"""What a log alone says of memory that ran out.

The messages are shortened from real threads, named at each.
"""

import pytest

from tests.tools.known import known
from zerobench.common.errors import UserError
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
    assert "Failed on rank 1." in said


def test_of_several_refusals_without_tracebacks_the_first_is_explained() -> None:
    told = as_data(explain_log(f"{TORCH_2_1}\n\n\n\n{TORCH_2_5}\n", "log.txt"))
    assert told["refusal"]["asked_bytes"] == int(1.70 * _GIB)


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
            "initialization",
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
            "initialization",
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
    found = known(killed_in(f"step 3 loss 2.1\n{text}\n"))
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
    found = known(killed_in(log))
    assert found.last_reading == "28.43 GB used, 22.6% of the machine's (Before initializing optimizer states)"


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
    assert text.startswith("Out of host memory\n")
    assert "requested: 80.00 GiB" in text
    assert (
        "The operating system gave the process no more host memory: a limit (ulimit, a control group) or the machine's "
        "memory is reached." in " ".join(text.split())
    )


@pytest.mark.parametrize(
    "words",
    [
        "Cuda failure 2 'out of memory'",
        "NCCL WARN Cuda failure 'out of memory'",
        "Failed to CUDA calloc async 608 bytes",
    ],
)
def test_nccl_that_the_driver_refused_is_named(words: str):
    text = f"ncclUnhandledCudaError: Call to CUDA function failed.\nLast error:\n{words}\n"
    assert [topic.title for topic in explain_log(text, "log")] == ["NCCL is out of GPU memory"]


def _refused(asked: str, free: str, unallocated: str, more: str = "") -> str:
    return (
        f"torch.OutOfMemoryError: CUDA out of memory. Tried to allocate {asked}. GPU 0 has a total capacity of"
        f" 23.68 GiB of which {free} is free. {more}Of the allocated memory 16.00 GiB is allocated by PyTorch, and"
        f" {unallocated} is reserved by PyTorch but unallocated.\n"
    )


@pytest.mark.parametrize(
    ("message", "told"),
    [
        (_refused("3.00 GiB", "2.90 GiB", "544.12 MiB"), "Fragmentation: 3.43 GiB"),
        (_refused("3.91 GiB", "3.38 GiB", "544.12 MiB"), "cannot be told"),
        (_refused("432.00 MiB", "7.12 GiB", "321.96 MiB"), "although the driver counts more than this as free"),
        (_refused("2.00 MiB", "7.12 GiB", "54.99 MiB", "16.06 GiB allowed; "), "the limit of this process"),
        (_refused("3.00 GiB", "2.90 GiB", "544.12 MiB", "16.06 GiB allowed; "), "the limit of this process"),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate more than 1EB memory.", "No real size"),
        (
            _refused("136.00 MiB", "93.81 MiB", "2.30 MiB", "Process 7 has 398.00 MiB memory in use. " * 3),
            "3 processes hold memory of this GPU",
        ),
    ],
)
def test_fragmentation_is_claimed_only_where_the_figures_prove_it(message: str, told: str):
    said = " ".join(as_text(explain_log(message, "log")).split())
    assert told in said
    assert ("Fragmentation" in said) is told.startswith("Fragmentation")
    assert bool(messages_in(message)[0].is_in_pieces) is told.startswith("Fragmentation")


def test_fragments_of_a_full_gpu_are_said_to_be_of_a_full_one():
    full = _refused("256.00 MiB", "114.46 MiB", "163.07 MiB").replace("memory 16.00 GiB", "memory 22.00 GiB")
    said = " ".join(as_text(explain_log(full, "log")).split())
    assert "But 22.00 GiB of 23.68 GiB was allocated: a later request may fail all the same." in said
    assert "was allocated:" not in as_text(explain_log(_refused("3.00 GiB", "2.90 GiB", "544.12 MiB"), "log"))


def test_the_answer_comes_before_the_figures():
    assert [topic.title for topic in explain_log(FIRST_UPDATE, "log")] == [
        "Out of GPU memory",
        "Requested by",
        "Figures in the message",
    ]


_RICH = """\
╭───────────────────── Traceback (most recent call last) ──────────────────────╮
│ /opt/site-packages/deepspeed/runtime/engine.py:300 in __init__               │
│                                                                              │
│ ❱  300 │   │   self._configure_optimizer(optimizer, model_parameters)        │
│                                                                              │
│ /opt/site-packages/deepspeed/runtime/zero/stage_1_and_2.py:620 in            │
│ initialize_optimizer_states                                                  │
╰──────────────────────────────────────────────────────────────────────────────╯
"""
_NOTEBOOK = """\
OutOfMemoryError                          Traceback (most recent call last)
File ~/site-packages/transformers/trainer.py:3140, in Trainer.evaluation_loop(self, dataloader)
-> 3140 losses = nested_concat(losses, logits)

File ~/site-packages/transformers/trainer_pt_utils.py:116, in nested_concat(tensors, new_tensors)
"""
_RAY = """\
(WorkerDict pid=11) Traceback (most recent call last):
(WorkerDict pid=12) Traceback (most recent call last):
(WorkerDict pid=11)   File "/opt/site-packages/torch/_tensor.py", line 581, in backward
(WorkerDict pid=12)   File "/opt/site-packages/torch/optim/adamw.py", line 220, in step
(WorkerDict pid=11)   File "/opt/site-packages/torch/autograd/graph.py", line 825, in _engine_run_backward
(WorkerDict pid=12) other words
(WorkerDict pid=11) """


@pytest.mark.parametrize(
    ("traceback", "asker"),
    [
        (_RICH, "optimizer's fp32 weights and states"),
        (_NOTEBOOK, "logits of all evaluated batches"),
        (_RAY, "gradients of activations"),
        # stages 1 and 2 make the buckets of a backward pass in the function of that name
        (
            '  File "/opt/deepspeed/runtime/zero/stage_1_and_2.py", line 1956, in backward\n',
            "packed gradients for the reduction",
        ),
    ],
)
def test_tracebacks_of_rich_notebooks_and_ray_name_who_asked(traceback: str, asker: str):
    said = " ".join(as_text(explain_log(traceback + _refused("4.00 GiB", "1.00 GiB", "1.00 MiB"), "log")).split())
    assert asker in said


def test_where_a_message_comes_twice_the_one_with_a_traceback_says_who_asked():
    said = as_text(explain_log(_refused("1.00 GiB", "1.00 MiB", "1.00 MiB") + FIRST_UPDATE, "log"), 200)
    assert "Phase: the update." in said


def test_other_ranks_messages_are_no_part_of_a_message():
    one = _refused("1.00 GiB", "1.00 MiB", "1.00 MiB", "Process 7 has 20.00 GiB memory in use. ")
    [first, second] = messages_in(f"[rank0]: {one}[rank1]: {one}")
    assert first.other_processes_bytes == second.other_processes_bytes == 20 * _GIB


_PINNED = """\
Traceback (most recent call last):
  File "/opt/site-packages/deepspeed/accelerator/cuda_accelerator.py", line 296, in pin_memory
    return tensor.pin_memory()
torch.AcceleratorError: CUDA error: out of memory
"""


@pytest.mark.parametrize(
    ("text", "title"),
    [
        (_PINNED, "Page-locked host memory was refused"),
        (_PINNED.replace("pin_memory", "zeros"), "The CUDA driver is out of memory"),
        ("RuntimeError: CUDA error: CUBLAS_STATUS_ALLOC_FAILED when calling", "The CUDA driver is out of memory"),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Bus error. It is", "Shared memory ran out"),
        ("RuntimeError: DataLoader worker (pid 7) is killed by signal: Killed. ", "A process was killed"),
        ("_exceptions._ArrayMemoryError: Unable to allocate 7.91 GiB for an array", "Out of host memory"),
        ("MemoryError", "Out of host memory"),
        ("  what():  std::bad_alloc", "Out of host memory"),
        ("OSError: [Errno 12] Cannot allocate memory", "Out of host memory"),
        ("unable to mmap 99 bytes from file </m.safetensors>: Cannot allocate memory (12)", "Out of host memory"),
        ("ray.exceptions.OutOfMemoryError: Task was killed due to the node running low on memory", "Host memory ran"),
        ("(raylet) node_manager.cc: 2 Workers (tasks / actors) killed due to memory pressure (OOM)", "Host memory ran"),
    ],
)
def test_every_kind_of_memory_is_named_first(text: str, title: str):
    assert as_text(explain_log(f"step 3\n{text}\n", "log")).startswith(title)
