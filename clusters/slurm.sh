#!/bin/bash
# A run on a Slurm allocation: a Ray cluster over its nodes, which ends with it.
#
#   ray get-auth-token --generate >/dev/null     # once: the secret of your clusters, in ~/.ray/auth_token
#   sbatch --nodes=4 clusters/slurm.sh distill -e $PWD/spec.yaml results_dir=/shared/results/run
#
# The arguments are those of `radioplat`: any task that reads a spec (distill, train, tune, compress, evaluate, ...).
#
# Two minutes before its time is up, or when it is preempted, the run gets SIGTERM: it saves, ends with exit status 75, and
# the job is queued again; any other status ends it. Home and results_dir must be the same on all nodes; `radioplat` and
# `ray` on the PATH.
#SBATCH --job-name=radioplat
#SBATCH --nodes=2
#SBATCH --ntasks-per-node=1
#SBATCH --gpus-per-node=8
#SBATCH --cpus-per-task=64
#SBATCH --exclusive
#SBATCH --time=24:00:00
#SBATCH --signal=B:TERM@120
#SBATCH --requeue
#SBATCH --open-mode=append
#SBATCH --output=radioplat-%j.log

set -uo pipefail

[[ ${1:--} == -* ]] && set -- distill "$@" # arguments without a task

export RAY_AUTH_MODE=token RAY_USAGE_STATS_ENABLED=0 RAY_health_check_period_ms=1000
export RADIOPLAT_DEBUG=1 # write the traceback of a defect (exit status 70) to this job's log, not only to the node's /tmp
readonly again=75 # EX_TEMPFAIL: the same command resumes the run
readonly patience=${HEAD_PATIENCE:-180} # seconds for Ray's head to start

mapfile -t nodes < <(scontrol show hostnames "$SLURM_JOB_NODELIST")
head=${nodes[0]}:$((20000 + SLURM_JOB_ID % 20000))   # jobs may share a node
places="{\"radioplat_worker\": ${SLURM_GPUS_ON_NODE:-1}}" # training workers a node

on_nodes() { # NODES COMMAND ...: one process a node, until it is ended
    local count
    count=$(tr , '\n' <<<"$1" | wc -l)
    srun --nodes="$count" --ntasks="$count" --nodelist="$1" --overlap "${@:2}" &
    steps+=($!)
}

finish() { # STATUS: end Ray, queue the job again where the run says so
    trap '' TERM
    ((${#steps[@]})) && kill "${steps[@]}" 2>/dev/null
    (($1 == again)) && scontrol requeue "$SLURM_JOB_ID"
    exit "$1"
}

steps=() run=
trap '[[ $run ]] && kill -TERM "$run" || finish $again' TERM

# Ray opens its temporary folder to all users, so it is in one of this user alone, with a random name on each node. The
# name is short: names of Ray's sockets must fit in 107 bytes.
# shellcheck disable=SC2016  # for the shell of each node
readonly start='temporary=$(mktemp -d /tmp/rp-XXXXXXXX) && exec ray start --block --temp-dir="$temporary/ray" "$@"'
on_nodes "${nodes[0]}" bash -c "$start" ray --head --port="${head##*:}" --dashboard-host=127.0.0.1 --resources="$places"
until timeout 20 ray health-check --address "$head"; do
    if ((SECONDS > patience)); then
        echo "the head on ${nodes[0]} does not answer after $SECONDS s: see srun's lines above" >&2
        finish 1
    fi
    sleep 2
done
if ((${#nodes[@]} > 1)); then
    on_nodes "$(IFS=,; echo "${nodes[*]:1}")" bash -c "$start" ray --address="$head" --resources="$places"
fi

RAY_ADDRESS=$head radioplat "$@" cluster.mode=ray &
run=$!
status=128
while ((status > 127)) && kill -0 "$run" 2>/dev/null; do # a signal ends `wait`, not the run
    wait "$run"
    status=$?
done
finish "$status"
