"""A real SLURM on this machine, as two nodes, for as long as a command runs; everything is in a temporary folder.

python tests/slurm/cluster.py COMMAND [ARGUMENT ...]     # e.g. `sinfo`, `srun -N2 hostname`, or `bash` to look around

Debian and Ubuntu: `apt-get install slurmctld slurmd slurm-client munge`. Runs as any user, root too.
"""

from __future__ import annotations

import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

PROGRAMS = ('munged', 'slurmctld', 'slurmd', 'srun', 'sbatch', 'scontrol', 'squeue', 'sinfo')
# Debian's daemons are where users do not look.
# Names of nodes that resolve everywhere, because the processes of a job connect to the first one.
NODES = ('127.0.0.1', '127.0.0.2')
PATH = os.pathsep.join([os.environ['PATH'], '/usr/sbin', '/usr/local/sbin'])

# The first node's name is an address, because the processes of a job connect to it. Requeued jobs wait for cred_expire
# seconds, and jobs die KillWait seconds after SIGTERM.
CONF = """
ClusterName=test
SlurmctldHost=localhost(127.0.0.1)
SlurmUser={user}
SlurmdUser={user}
AuthType=auth/munge
CredType=cred/munge
AuthInfo=socket={folder}/munge/socket,cred_expire=5
SlurmctldPort={ports[0]}
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd-%n.log
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SlurmdParameters=config_overrides
ReturnToService=2
KillWait=5
MinJobAge=3600
SlurmdTimeout=10
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerParameters=sched_interval=2,sched_min_interval=0,bf_interval=1,batch_sched_delay=0
NodeName={nodes[0]} Port={ports[1]} CPUs=4
NodeName={nodes[1]} Port={ports[2]} CPUs=4
PartitionName=cpu Nodes=ALL Default=YES PriorityTier=1 GraceTime=5 MaxTime=INFINITE
PartitionName=urgent Nodes=ALL PriorityTier=2 PreemptMode=OFF MaxTime=INFINITE
"""


def missing() -> list[str]:
    """The programs that have to be installed."""
    return [name for name in PROGRAMS if not shutil.which(name, path=PATH)]


def _free_ports(number: int) -> list[int]:
    with ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(number)]
        for probe in probes:
            probe.bind(('127.0.0.1', 0))
        return [probe.getsockname()[1] for probe in probes]


@contextmanager
def cluster() -> Iterator[dict[str, str]]:
    """Start the daemons, yield the environment for SLURM's commands, and stop everything that runs in the cluster."""
    with ExitStack() as stack:
        # Not pytest's folder: paths of sockets are at most 107 characters long.
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix='slurm-')))
        environment = {k: v for k, v in os.environ.items() if not k.startswith('SLURM')}
        environment |= dict(PATH=PATH, SLURM_CONF=str(folder / 'slurm.conf'))
        _configure(folder)

        def daemon(*command: str) -> None:
            log = stack.enter_context(open(folder / f'{command[0]}.out', 'a'))
            # It ends with this process too, if that is killed.
            process = subprocess.Popen(
                ['setpriv', '--pdeathsig', 'TERM', *command],
                env=environment, stdout=log, stderr=log, cwd=folder,
            )  # fmt: skip
            stack.callback(_stop, process)

        munge = folder / 'munge'
        files = [f'--{name}-file={munge}/{name}' for name in ('key', 'log', 'pid', 'seed')]
        stack.callback(_kill_jobs, f'SLURM_CONF={folder}/slurm.conf')
        daemon('munged', '--foreground', f'--socket={munge}/socket', *files)
        _wait((munge / 'socket').exists, folder)
        daemon('slurmctld', '-D')
        for node in NODES:
            daemon('slurmd', '-D', '-N', node)

        def sinfo() -> bool:
            command = ['sinfo', '--noheader', '--Node', '--partition=cpu', '--format=%t']
            done = subprocess.run(
                command, env=environment, capture_output=True, text=True, check=False
            )
            return done.stdout.split() == ['idle', 'idle']

        _wait(sinfo, folder)
        yield environment


def _configure(folder: Path) -> None:
    for name in ('munge', 'state', *(f'spool-{node}' for node in NODES)):
        (folder / name).mkdir(mode=0o755)
    folder.chmod(0o755)
    key = folder / 'munge' / 'key'
    key.touch(0o600)
    key.write_bytes(os.urandom(128))
    user = pwd.getpwuid(os.getuid()).pw_name
    text = CONF.format(user=user, folder=folder, nodes=NODES, ports=_free_ports(3))
    (folder / 'slurm.conf').write_text(text)


def _wait(ready, folder: Path, seconds: float = 30) -> None:
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            logs = [*folder.glob('*.log'), *folder.glob('*.out'), folder / 'munge' / 'log']
            raise TimeoutError(
                '\n'.join(f'{log}:\n{log.read_text()[-2000:]}' for log in logs if log.exists())
            )
        time.sleep(0.1)


def _kill_jobs(variable: str) -> None:
    """Kill all processes of the cluster, after its daemons: what they have started outlives them."""
    for folder in Path('/proc').glob('[0-9]*'):
        try:
            if variable.encode() in (folder / 'environ').read_bytes().split(b'\0'):
                os.kill(int(folder.name), signal.SIGKILL)
        except (OSError, ValueError):  # ended, or another user's
            continue


def _stop(process: subprocess.Popen) -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()


if __name__ == '__main__':
    if names := missing():
        sys.exit(f'error: {", ".join(names)} not found')
    with cluster() as environment:
        sys.exit(subprocess.call(sys.argv[1:], env=environment))
