"""Fields of every command's `--json` document: a public interface, tested against the documents.

`[]` stands for each element of a list, `*` for each name of an object. A kind is `text`, `integer`, `number`, `boolean`
or `object`; with `?` it may be null if unknown or not applicable. Bytes are integers, seconds numbers. Fields are only
ever added.
"""

from collections.abc import Mapping
from typing import NamedTuple


class Field(NamedTuple):
    kind: str
    words: str = ""


def _fields(text: str) -> Mapping[str, Field]:
    """Parse one field per line: path, kind, description."""
    split = (line.split(maxsplit=2) for line in text.strip().splitlines())
    return {path: Field(kind, " ".join(words)) for path, kind, *words in split}


EVERY = _fields("""
zerobench  text  version of zerobench
command    text  the command
""")
"""Fields of every document."""

FIELDS: Mapping[str, Mapping[str, Field]] = {
    "tune": _fields("""
run                                     text     folder of the predictions
best                                    text?    the configuration to take; null where nothing fits with room
reason                                  text?    why that one
runner_up                               text?    the next best with its time and memory against that one's
ds_config                               text?    file of its DeepSpeed configuration
search                                  text     file of all that was tried
notes[]                                 text     what a reader of the figures must know
"""),
    "plan": _fields("""
run                                     text     folder of the predictions
best                                    text?    the configuration to take; null where nothing fits with room
reason                                  text?    why that one
runner_up                               text?    the next best with its time and memory against that one's
ds_config                               text?    file of its DeepSpeed configuration
notes[]                                 text     what a reader of the figures must know
configurations[].configuration          text     name
configurations[].fits                   boolean  on device and host, as far as is known
configurations[].needed_bytes           integer? of one GPU at the worst moment, with slack, context and NCCL
configurations[].start_up_needed_bytes  integer? of that, at start-up
configurations[].steady_needed_bytes    integer? of that, in steps
configurations[].capacity_bytes         integer? of one GPU
configurations[].host_needed_bytes      integer? of one node
configurations[].expected_step_s        number?  expected time of a step
configurations[].expected_step_low_s    number?  eight of ten steps lie above
configurations[].expected_step_high_s   number?  eight of ten steps lie below
configurations[].tokens_per_s           number?  of all GPUs, expected
configurations[].expected_mfu           number?  model FLOP/s over the peak of its precision, expected
configurations[].step_bound_s           number?  what a step takes at least
configurations[].training               object?  days, GPU-hours, cost, energy of --tokens: low, expected, high
configurations[].categories.*           integer  bytes at the peak of a steady step, by category
without_figures[].trial_id              text     a trial that was skipped or could not be predicted
without_figures[].status                text     how it ended
without_figures[].reason                text?    why
search                                  text     with a global batch: file of all that was tried
runs                                    text     with --frontier: folder of the search
axis                                    text     with --frontier: what grows
frontier[].configuration                text     name
frontier[].largest                      integer? largest value that fits
frontier[].too_large                    integer? least value known not to fit
frontier[].needed_bytes                 integer? of one GPU at `largest`
given_up.*                              text     why a search ended early, by configuration
"""),
    "compare": _fields("""
base                            text     folder of the run before
new                             text     folder of the run after
passed                          boolean  whether every limit holds
limits[].limit                  text     as written
limits[].passed                 boolean  whether it holds
limits[].trials_judged          integer  trials that it could judge
limits[].failures[]             text     a sentence for each trial that exceeds it
limits[].not_judged[]           text     a sentence for each trial that it cannot judge
trials[].trial                  text     name
trials[].base_status            text     how its repeats ended before
trials[].new_status             text     how they ended after
trials[].memory[].place         text     device, host, nvme, reserved, used or resident
trials[].memory[].step          text     first (with start-up) or steady
trials[].memory[].base_bytes    integer  peak before
trials[].memory[].new_bytes     integer  peak after
trials[].memory[].more_bytes    integer  new less base
trials[].memory[].fraction      number?  the same as a fraction of base
trials[].memory[].categories.*  integer  the same by category
trials[].speed                  object?  verdict, ratio (new over base, above 1 is slower), p_value
configuration_changed[].key     text     a DeepSpeed key that NEW sets otherwise, as a dotted path
configuration_changed[].base    text     its value before, in brief; `default` where it is left out
configuration_changed[].new     text     its value after
configuration_changed[].trials[]  text   trials that it changed in
causes[]                        text     why the peak that grew most did
only_base[]                     text     trials that only BASE has
only_new[]                      text     trials that only NEW has
environment[].name              text     a fact that differs
environment[].base              text?    before
environment[].new               text?    after
"""),
    "status": _fields("""
run                   text     folder
is_going              boolean  whether it still goes on without anybody's help
slurm_answers         boolean  whether Slurm could be asked
counts.*              integer  trials by standing
trials[].trial_id     text     id
trials[].standing     text     completed, failed, skipped, running, queued or another word of the screen
trials[].reason       text?    why it failed or was skipped, or why its job waits
trials[].job          text?    name of its job
trials[].task_id      integer? index of its task
trials[].silence_s    number?  for how long no rank of it has said anything
jobs[].name           text     name
jobs[].job_id         integer? Slurm's id
jobs[].tasks          integer  tasks of the array
jobs[].states.*       integer  tasks by Slurm's state
jobs[].time_left_s    number?  until the time limit
next                  text?    what to do next
"""),
    "show": _fields("""
run             text     folder
schema_version  integer  of the records
decisions[]     object   what to take, for each kind of work: configuration, trial_id, reason, runner_up
runs[]          object   run_id, sweep, environment, nodes, submitted_from, not_ended
trials[]        object   the columns of trials.csv and more, with peaks, ranks and notes of the trial
errors[]        object   the columns of errors.csv
"""),
    "run": _fields("""
run                text     folder
runs               text     with --frontier: folder of the search; then the fields of frontier.json follow
interrupted        boolean  whether someone stopped it
trials[].trial_id  text     id
trials[].status    text?    how it ended
trials[].runs      boolean  with --dry-run: whether it would be run
trials[].rule      text?    with --dry-run: the rule that skips it
trials[].reason    text?    with --dry-run: why
notes[]            text     with --dry-run: what a reader must know
"""),
    "validate": _fields("""
run          text     folder
predictions  integer  predictions that stand beside a measurement
has_failed   boolean  whether a trial failed
errors[]     object   the columns of errors.csv
"""),
    "explain": _fields("""
passages[].title        text    heading
passages[].sentences[]  text    as printed
*                       object? the figures behind the sentences
"""),
    "emulate": _fields("""
fits                    boolean? whether all fits
ranks[].rank            integer  of the rank
ranks[].fits            boolean? on its GPU
ranks[].peak_bytes      integer? the most that torch's allocator had given out
ranks[].reserved_bytes  integer? the most that it had reserved
ranks[].start_up_reserved_bytes  integer? at start-up
ranks[].steady_reserved_bytes    integer? in steps
ranks[].needed_bytes    integer? of its GPU: what torch cannot give back, CUDA context and NCCL
ranks[].start_up_needed_bytes  integer? at start-up
ranks[].steady_needed_bytes    integer? in steps
ranks[].nvml_bytes      integer? what the driver would show as used: reserved, CUDA context and NCCL
ranks[].compiled        boolean  whether it was played compiled too: peaks are that play's, categories the other's
ranks[].categories.*    integer  at the peak
host.node_bytes         integer? needed of one node
host.fits               boolean? in its memory
tries[].changes[]       text     one of the smallest changes that were tried
tries[].fits            boolean? with them
tries[].needed_bytes    integer? of a GPU, with them
expected_step_s         number?  expected time of the script's step, by replay of what was played
expected_step_low_s     number?  eight of ten steps lie above
expected_step_high_s    number?  eight of ten steps lie below
expected_mfu            number?  model FLOP/s over the peak of its precision, expected
*                       object?  more figures; sizes end in _bytes
"""),
    "submit": _fields("""
run                    text     folder
jobs[].name            text     name
jobs[].job_id          integer? Slurm's id
jobs[].tasks           integer  tasks of the array
jobs[].task_id         integer  with --local: index of the task
jobs[].exit_code       integer  with --local: how it ended
arrays[].kind          text     with --dry-run: what the array does
arrays[].nodes         integer  with --dry-run: of one task
arrays[].tasks         integer  with --dry-run: tasks of the array
arrays[].trials        integer  with --dry-run: trials of the array
arrays[].time_limit_s  number   with --dry-run: of one task
arrays[].node_hours    number   with --dry-run: asked for at most
skipped                integer  with --dry-run: trials that rules skip
"""),
    "baseline": _fields("""
baselines[].baseline  text  name
baselines[].run_id    text  of the run that was kept
baselines[].folder    text  where the copy lies
"""),
    "doctor": _fields("""
can_run.*          boolean  what can run here
checks[].what      text     what was looked at
checks[].standing  text     ok, limited or missing
checks[].finding   text     what was found
checks[].remedy    text     what to do; empty where nothing is wrong
"""),
    "models": _fields("""
models[].model          text     name of the preset
models[].family         text     architecture
models[].parameters     integer? exact count
models[].num_layers     integer? layers
models[].hidden_size    integer? width
models[].num_heads      integer? attention heads
models[].vocab_size     integer? tokens of the vocabulary
models[].max_positions  integer? context; null where any length will do
model                   text     with MODEL: as given
components.*            integer  with MODEL: parameters by component, and total
gpus[].gpu              text     with --gpus: name in the hardware catalogue
gpus[].memory_bytes     integer? with --gpus: as NVML reports it
gpus[].usable_memory_bytes  integer? with --gpus: what CUDA hands out; predictions must fit it
gpus[].usable_memory_rule   text?    with --gpus: how that is derived; null if the catalogue gives it
gpus[].bf16_tflops      number?  with --gpus: dense peak
gpus[].memory_gb_per_s  number?  with --gpus: bandwidth of its memory
gpus[].link             text?    with --gpus: fastest link to another GPU
gpus[].link_gb_per_s    number?  with --gpus: its bandwidth, both directions together
"""),
    "strategies": _fields("""
strategies[].strategy      text     name
strategies[].summary       text     what it is
strategies[].can_run_here  boolean  whether this machine can measure it
strategies[].facts.*       text     as printed
optimizers[].optimizer     text     name
optimizers[].title         text     what it is
optimizers[].state_bytes   number   of one parameter
optimizers[].facts.*       text     as printed
"""),
    "sweeps": _fields("""
sweeps[].sweep  text  name
sweeps[].file   text  where it lies
sweeps[].about  text  what it shows
axes[].axis     text  with --axes: name
axes[].example  text? with --axes: a value
axes[].about    text  with --axes: what it may be
"""),
    "calibrate": _fields("""
file               text     what was written
variable           text     environment variable that names it to predictions
gpus[].gpu         text     name
gpus[].world_size  integer  ranks of the trials
gpus[].ranks       integer  rank records that it is from
"""),
    "watch": _fields("""
run        text     folder
status     text?    how the command ended; null where no record could be written
exit_code  integer  the command's own
"""),
    "setup": _fields("""
environment  text  name
folder       text  where it lies
"""),
    "export": _fields("""
exported[]  text  a line for each tool
"""),
}
"""Fields by command."""
