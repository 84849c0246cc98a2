"""A private Slurm cluster on this machine: real daemons, pretended nodes with eight pretended GPUs each.

It needs no root, no systemd and no control groups, and nothing of it lies outside its folder. Two can run beside each
other. What belongs to it is known by SLURM_CONF in its environment: daemons, job steps and all that they start.
"""

import os
import secrets
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from zerobench.common.rank_processes import free_ports

PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "srun", "squeue", "scontrol", "sinfo", "scancel")
START_S = 60.0
END_S = 60.0

CONF = """\
ClusterName=zb
SlurmctldHost=localhost(127.0.0.1)
SlurmctldPort={controller_port}
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
AuthInfo=socket={folder}/run/munge.socket,cred_expire=5
StateSaveLocation={folder}/state
SlurmctldPidFile={folder}/run/slurmctld.pid
SlurmdPidFile={folder}/run/slurmd-%n.pid
SlurmdSpoolDir={folder}/spool/%n
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=1000
GresTypes=gpu
MpiDefault=none
MaxArraySize={max_array_size}
ReturnToService=2
SlurmdParameters=config_overrides
# A requeued job waits for cred_expire, and then for the scheduler.
SchedulerParameters=sched_interval=1,bf_interval=1
SlurmctldTimeout=60
SlurmdTimeout=120
KillWait=30
MinJobAge=900
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
JobCompType=jobcomp/none
"""
GRES = """\
AutoDetect=off
NodeName={nodes} Name=gpu Type=h200 File={folder}/dev/gpu[0-7] Flags=nvidia_gpu_env
"""


def missing_programs() -> list[str]:
    """What of Slurm and munge is not installed here."""
    path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
    return [name for name in PROGRAMS if shutil.which(name, path=path) is None]


@dataclass
class Cluster:
    """Nodes n1 to n`num_nodes`, in `partitions`: what slurm.conf says behind each PartitionName=."""

    folder: Path
    num_nodes: int
    partitions: Sequence[str]
    max_array_size: int = 1001
    gave_up: bool = False
    """Whether nobody waits for anything here any more."""
    _daemons: list[subprocess.Popen[bytes]] = field(default_factory=list)
    _slurmd: dict[str, subprocess.Popen[bytes]] = field(default_factory=dict)

    @property
    def conf(self) -> Path:
        """What SLURM_CONF names."""
        return self.folder / "slurm.conf"

    def start(self) -> None:
        """Start the daemons; all nodes are idle when it returns."""
        self._lay_out()
        socket_path, key, run = self.folder / "run/munge.socket", self.folder / "key", self.folder / "run"
        # --force: the folder of a test is its user's alone, and munged warns where it would refuse.
        self._daemon("munged", "--foreground", "--force", f"--socket={socket_path}", f"--key-file={key}/munge.key",
                     f"--pid-file={run}/munged.pid", f"--log-file={self.folder}/log/munged.log",
                     f"--seed-file={key}/seed", "--num-threads=4")  # fmt: skip
        self._await("munged", lambda: self._answers(["munge", "-S", str(socket_path), "-n"]))
        self._daemon("slurmctld", "-D")
        for number in range(1, self.num_nodes + 1):
            self._start_node(f"n{number}")
        self._await("the nodes", lambda: self._states() == {"idle"})

    def stop(self) -> list[str]:
        """End jobs and daemons; the names of processes that outlived them, which are ended too."""
        try:
            self.end_jobs()
        finally:
            for daemon in reversed(self._daemons):
                _end(daemon)
            left = self._end_left_over()
        return left

    def end_jobs(self) -> None:
        """Cancel all jobs and wait for their end: a job's steps outlive the daemons."""
        deadline = time.monotonic() + END_S
        while (left := self.ask("squeue", "-h", "-o", "%A", fails=True).split()) and time.monotonic() < deadline:
            self.ask("scancel", *set(left), fails=True)
            time.sleep(0.2)

    def ask(self, *argv: str, fails: bool = False) -> str:
        """What one of Slurm's programs prints; it may fail only where `fails`."""
        environment = os.environ | {"SLURM_CONF": str(self.conf)}
        done = subprocess.run(argv, env=environment, capture_output=True, text=True, timeout=60, check=False)
        assert fails or done.returncode == 0, f"{' '.join(argv)}: {done.stderr}"
        return done.stdout

    def freeze_node(self, name: str) -> list[psutil.Process]:
        """Let nothing of a node answer any more, as if it had lost its power: its connections stay open."""
        frozen = self._of_node(name)
        for process in frozen:
            process.suspend()
        return frozen

    def restart_node(self, name: str, frozen: Sequence[psutil.Process]) -> None:
        """Start a node afresh that was frozen."""
        for process in frozen:
            with suppress(psutil.NoSuchProcess):  # what the runner found of them it has ended
                process.kill()
        self._start_node(name)

    def _of_node(self, name: str) -> list[psutil.Process]:
        """A node's daemon, its steps and what runs in them."""
        tasks = [process for process in self.processes() if _environment(process).get("SLURMD_NODENAME") == name]
        steps = {parent for task in tasks for parent in task.parents() if parent.name() == "slurmstepd"}
        return [psutil.Process(self._slurmd[name].pid), *steps, *tasks]

    def processes(self) -> list[psutil.Process]:
        """Every living process that belongs to the cluster, other than this one."""
        found = []
        for process in psutil.process_iter():
            is_ours = _environment(process).get("SLURM_CONF") == str(self.conf)
            if is_ours and process.pid != os.getpid():
                found.append(process)
        return found

    def _lay_out(self) -> None:
        for name in ("state", "log", "run", "spool", "dev", "key"):
            (self.folder / name).mkdir(parents=True)
        for gpu in range(8):  # Slurm takes only devices for GPUs
            (self.folder / f"dev/gpu{gpu}").symlink_to("/dev/null")
        key = self.folder / "key/munge.key"
        key.touch(0o600)
        key.write_bytes(secrets.token_bytes(128))
        key.parent.chmod(0o700)
        controller_port, *ports = free_ports(self.num_nodes + 1)
        user = psutil.Process().username()
        values = {"folder": self.folder, "user": user, "max_array_size": self.max_array_size}
        text = CONF.format(controller_port=controller_port, **values)
        for number, port in enumerate(ports, 1):
            text += f"NodeName=n{number} NodeHostname=localhost NodeAddr=127.0.0.1 Port={port}"
            text += " CPUs=8 RealMemory=8000 Gres=gpu:h200:8\n"
        text += "".join(f"PartitionName={partition}\n" for partition in self.partitions)
        self.conf.write_text(text)
        (self.folder / "gres.conf").write_text(GRES.format(nodes=f"n[1-{self.num_nodes}]", folder=self.folder))

    def _start_node(self, name: str) -> None:
        self._slurmd[name] = self._daemon("slurmd", "-D", "-N", name)

    def _daemon(self, program: str, *options: str) -> subprocess.Popen[bytes]:
        path = os.pathsep.join([os.environ.get("PATH", ""), "/usr/sbin", "/sbin"])
        with (self.folder / "log/daemons.out").open("ab") as out:
            daemon = subprocess.Popen(
                [shutil.which(program, path=path) or program, *options],
                env={**os.environ, "PATH": path, "SLURM_CONF": str(self.conf)},
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                start_new_session=True,  # Ctrl-C is for the tests, which then end it
            )
        self._daemons.append(daemon)
        return daemon

    def _answers(self, argv: Sequence[str]) -> bool:
        return subprocess.run(argv, capture_output=True, timeout=60, check=False).returncode == 0

    def _states(self) -> set[str]:
        return set(self.ask("sinfo", "-h", "-o", "%T", fails=True).split())

    def _await(self, what: str, condition: Callable[[], bool]) -> None:
        deadline = time.monotonic() + START_S
        while not condition():
            gone = [daemon.args for daemon in self._daemons if daemon.poll() is not None]
            assert not gone, f"ended: {gone}; {self._last_words()}"
            assert time.monotonic() < deadline, f"{what}: not ready; {self._last_words()}"
            time.sleep(0.1)

    def _last_words(self) -> str:
        logs = sorted((self.folder / "log").iterdir())
        return "\n".join(f"== {log.name}\n{log.read_text(errors='replace')[-800:]}" for log in logs)

    def _end_left_over(self) -> list[str]:
        deadline = time.monotonic() + 5
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.1)
        left = self.processes()
        names = [f"{process.pid} {' '.join(process.cmdline())}" for process in left]
        for process in left:
            process.kill()
        return names


def _end(daemon: subprocess.Popen[bytes]) -> None:
    daemon.terminate()
    try:
        daemon.wait(END_S)
    except subprocess.TimeoutExpired:
        daemon.kill()
        daemon.wait()


def _environment(process: psutil.Process) -> dict[str, str]:
    """Of a living process; empty for one that is gone, or another user's.

    Read here: slurmstepd writes its title over the beginning, and psutil stops at the zeros behind it.
    """
    try:
        is_gone = process.status() == psutil.STATUS_ZOMBIE
        text = Path(f"/proc/{process.pid}/environ").read_text(errors="replace")
    except (psutil.Error, OSError):
        return {}
    return {} if is_gone else dict(line.split("=", 1) for line in text.split("\0") if "=" in line)
