#!/bin/bash
# Tries the Slurm files on this machine, as root, in a container or a machine to throw away: installs Slurm from Debian,
# starts a cluster of this one machine, and runs a small sweep as an array in which one task is requeued, one warned as
# before the time limit, and one cancelled and submitted again, each after its first finished point. The end must be that
# of a plain run.
#
#   cluster/try_slurm.sh [--multinode]       JAXSENS=/path/to/jaxsens if it is not on the PATH
#
# With --multinode also two processes that share every point, and are warned in the middle.
set -euo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ "$(id -u)" -eq 0 ] || { echo "try_slurm.sh starts daemons: run it as root" >&2; exit 2; }
JAXSENS=$(command -v "${JAXSENS:-jaxsens}") || { echo "no jaxsens: name it, JAXSENS=/path/to/jaxsens" >&2; exit 2; }
export JAXSENS

if ! command -v slurmctld >/dev/null || ! command -v munged >/dev/null; then
    apt-get update -qq
    DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends slurm-wlm munge
fi

work=$(mktemp -d /tmp/try_slurm.XXXXXX)
host=$(hostname -s)
munge_socket="$work/munge/socket"
pids=()
stop() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
}
trap stop EXIT

# A munge of our own: the machine's may not run, or be another's.
install -d -m 755 "$work/munge"
head -c 1024 /dev/urandom >"$work/munge/key"
chmod 600 "$work/munge/key"
munged --foreground --force --key-file="$work/munge/key" --socket="$munge_socket" --pid-file="$work/munge/pid" \
    --log-file="$work/munge/log" --seed-file="$work/munge/seed" &
pids+=($!)

cat >"$work/slurm.conf" <<END
ClusterName=try
SlurmctldHost=$host
SlurmUser=root
SlurmctldPort=16817
SlurmdPort=16818
AuthType=auth/munge
AuthInfo=socket=$munge_socket
CryptoType=crypto/munge
StateSaveLocation=$work/state
SlurmdSpoolDir=$work/spool
SlurmctldPidFile=$work/slurmctld.pid
SlurmdPidFile=$work/slurmd.pid
SlurmctldLogFile=$work/slurmctld.log
SlurmdLogFile=$work/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=batch_sched_delay=0
SlurmdParameters=config_overrides
ReturnToService=2
JobRequeue=1
KillWait=30
MpiDefault=none
GresTypes=gpu
NodeName=$host Gres=gpu:1 NodeAddr=127.0.0.1 CPUs=2 Boards=1 SocketsPerBoard=1 CoresPerSocket=2 ThreadsPerCore=1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
echo "Name=gpu File=/dev/null" >"$work/gres.conf" # no GPU, but counted as one: for the check of the requests
export SLURM_CONF="$work/slurm.conf"
mkdir -p "$work/state" "$work/spool"
sleep 1
slurmctld -D -c >"$work/slurmctld.out" 2>&1 &
pids+=($!)
slurmd -D >"$work/slurmd.out" 2>&1 &
pids+=($!)
for _ in $(seq 30); do
    [ "$(sinfo -h -o %t 2>/dev/null)" = idle ] && break
    sleep 1
done
sinfo

# The requests of docs/cluster.md, on one node: Slurm says when such a job would start, or what is wrong with it.
sbatch --test-only --array=0-63 --gpus-per-task=1 --cpus-per-task=1 --mem=0 "$here/slurm_array.sbatch" CONFIG DIR
sbatch --test-only --nodes=1 --gpus-per-node=1 --cpus-per-task=1 --mem=0 "$here/slurm_multinode.sbatch" CONFIG DIR

cat >"$work/sweep.toml" <<'END'
title = "a small sweep"
lengths = [128, 256, 384]
seeds = 12
variants = ["softmax", "average-hard"]
statistics = ["mean", "max"]

[model]
alphabet_size = 2
width = 32
heads = 2
layers = 2
feed_forward = 64
positions = "sinusoidal"
END

# On a machine with fewer cores than tasks, each task must compute as the plain run does, for figures to be equal.
options=(--cpus-per-task=1 --mem=0 --time=10 --chdir="$work")
export XDG_CACHE_HOME="$work/cache"

say() { printf '\n== %s  [%d s]\n' "$1" "$SECONDS"; }

settled() { # waits until no job of this user is left
    for _ in $(seq 600); do
        [ -z "$(squeue -h)" ] && return
        sleep 1
    done
    squeue
    echo "the jobs did not end" >&2
    exit 1
}

after_a_point() { # waits until a point of the list in file $1 is finished, and runs the rest of the line
    local points=() path
    mapfile -t points <"$1"
    for _ in $(seq 3000); do
        for path in "${points[@]}"; do
            [ -e "$path" ] && { shift && "$@" && return; }
        done
        sleep 0.1
    done
    echo "no point of $1 was finished" >&2
    exit 1
}

shard() { # writes the files of the points of shard $1 to a list
    "$(dirname "$(command -v "$JAXSENS")")/python" - "$work" "$1" >"$work/points_$1" <<'END'
import sys
from pathlib import Path
from jaxsens.core.sweeps.config import load_sweep_config
from jaxsens.core.sweeps.points import select
work = Path(sys.argv[1])
for point in select(load_sweep_config(work / "sweep.toml").points, shard=f"{sys.argv[2]}/4"):
    print(point.path(work / "array"))
END
}

resumed() { # of the logs $@, one says that points were done before the process began
    grep -H "were done before" "$@" || { echo "$*: not resumed in the middle" >&2; exit 1; }
}

same() { # compares the tables of a directory with those of the plain run
    cmp "$work/plain/points.csv" "$1/points.csv"
    [ -s "$1/report.html" ]
    "$JAXSENS" status "$1"
    echo "same as the plain run: $(wc -l <"$1/points.csv") lines"
}

say "a plain run"
"$JAXSENS" sweep "$work/sweep.toml" --out "$work/plain" 2>&1 | tail -3

for k in 1 2 3; do shard "$k"; done

say "an array of four tasks: one requeued, one warned, one cancelled"
job=$(sbatch --parsable --array=0-3 "${options[@]}" "$here/slurm_array.sbatch" "$work/sweep.toml" "$work/array")
hits=()
after_a_point "$work/points_1" scontrol requeue "${job}_1" &
hits+=($!)
after_a_point "$work/points_2" scancel --signal=TERM "${job}_2" & # to the step alone, as --signal=TERM@120 does
hits+=($!)
after_a_point "$work/points_3" scancel "${job}_3" &
hits+=($!)
for hit in "${hits[@]}"; do wait "$hit"; done
squeue -r
sleep 3
say "the cancelled task is submitted again"
SHARDS=4 sbatch --array=3 "${options[@]}" "$here/slurm_array.sbatch" "$work/sweep.toml" "$work/array"
settled
tail -n 30 "$work"/jaxsens-*.log
for k in 1 2 3; do resumed "$work"/jaxsens-*_"$k".log; done
same "$work/array"

if [ "${1:-}" = --multinode ]; then
    say "two processes that share every point, warned in the middle"
    sed "s:^$work/array:$work/nodes:" "$work/points_1" >"$work/points_nodes"
    job=$(sbatch --parsable --nodes=1 --ntasks=2 --ntasks-per-node=2 "${options[@]}" \
        "$here/slurm_multinode.sbatch" "$work/sweep.toml" "$work/nodes" --share-above 0)
    after_a_point "$work/points_nodes" scancel --signal=TERM "$job"
    settled
    tail -n 30 "$work"/jaxsens-nodes-*.log
    resumed "$work"/jaxsens-nodes-*.log
    same "$work/nodes"
fi
say "done; logs are in $work"
