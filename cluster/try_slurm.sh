#!/bin/bash
# Tries the Slurm files on this machine, as root, in a container or a machine to throw away: installs Slurm from Debian,
# starts a cluster of this one machine, and runs a small sweep as an array in which one task is requeued, one warned as
# before the time limit, and one cancelled and submitted again. The end must be that of a plain run.
#
#   cluster/try_slurm.sh [--multinode]       JAXSENS=/path/to/jaxsens if it is not on the PATH
#
# With --multinode also two processes that share the points.
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
NodeName=$host NodeAddr=127.0.0.1 CPUs=4 Boards=1 SocketsPerBoard=1 CoresPerSocket=4 ThreadsPerCore=1 State=UNKNOWN
PartitionName=all Nodes=ALL Default=YES MaxTime=INFINITE State=UP
END
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

cat >"$work/sweep.toml" <<'END'
title = "a small sweep"
lengths = [128, 256, 384]
seeds = 8
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
cache=(--compilation-cache "$work/compiled")
export XDG_CACHE_HOME="$work/cache"

say() { printf '\n== %s  [%d s]\n' "$1" "$SECONDS"; }

settled() { # waits until no job of this user is left
    for _ in $(seq 300); do
        [ -z "$(squeue -h)" ] && return
        sleep 1
    done
    squeue
    echo "the jobs did not end" >&2
    exit 1
}

state() { # the state of array task $1
    squeue -h -o %T -j "$1" 2>/dev/null || true
}

running() { # waits until a task has begun to measure
    for _ in $(seq 120); do
        [ "$(state "$1")" = RUNNING ] && compgen -G "$work/array/points/*/*/.*.claim" >/dev/null && return
        sleep 0.5
    done
    echo "$1 did not start" >&2
    exit 1
}

same() { # compares the tables of a directory with those of the plain run
    cmp "$work/plain/points.csv" "$1/points.csv"
    [ -s "$1/report.html" ]
    "$JAXSENS" status "$1"
    echo "same as the plain run: $(wc -l <"$1/points.csv") lines"
}

say "a plain run"
"$JAXSENS" sweep "$work/sweep.toml" --out "$work/plain" "${cache[@]}" 2>&1 | tail -3

say "an array of four tasks: one requeued, one warned, one cancelled"
job=$(sbatch --parsable --array=0-3 "${options[@]}" "$here/slurm_array.sbatch" "$work/sweep.toml" "$work/array")
running "${job}_1" && scontrol requeue "${job}_1"
running "${job}_2" && scancel --signal=TERM "${job}_2" # to the step alone, as --signal=TERM@120 does
running "${job}_3" && scancel "${job}_3"
squeue -r
sleep 3
say "the cancelled task is submitted again"
SHARDS=4 sbatch --array=3 "${options[@]}" "$here/slurm_array.sbatch" "$work/sweep.toml" "$work/array"
settled
tail -n 30 "$work"/jaxsens-*.log
same "$work/array"

if [ "${1:-}" = --multinode ]; then
    say "two processes that share the points"
    sbatch --nodes=1 --ntasks=2 --ntasks-per-node=2 "${options[@]}" \
        "$here/slurm_multinode.sbatch" "$work/sweep.toml" "$work/nodes"
    settled
    tail -n 30 "$work"/jaxsens-nodes-*.log
    same "$work/nodes"
fi
say "done; logs are in $work"
