#!/bin/bash
# A Ray cluster of several raylets on this machine, with the ports, the token and the resources of a real one.
#
#   clusters/local.sh up 3                  # a head and three nodes, with room for one training worker each
#   eval "$(clusters/local.sh environment)" # RAY_ADDRESS and the token's file, for `radioplat distill ... cluster.mode=ray`
#   clusters/local.sh down                  # ends the processes that it started, and no others
#
# clusters/local.py, with commands that kill and drain nodes, is for tests of what a run does then.
set -euo pipefail

# The cluster's files are in a folder with a random name, of this user alone; `record` says which. RADIOPLAT_LOCAL_FOLDER
# names another one, which must not exist yet. It is short: names of Ray's sockets must fit in 107 bytes.
readonly record=${XDG_STATE_HOME:-${HOME:-}/.local/state}/radioplat/local-cluster-$HOSTNAME
folder=${RADIOPLAT_LOCAL_FOLDER:-$(cat "$record" 2>/dev/null || true)}
readonly python=${PYTHON:-python}

exists() { # a folder that somebody else made at that place says nothing about our processes
    [[ -n $folder && -d $folder && ! -L $folder && -O $folder && -e $folder/groups ]]
}

environment() {
    if ! exists; then
        echo "there is none; clusters/local.sh up starts one" >&2
        exit 1
    fi
    echo "export RAY_ADDRESS=$(cat "$folder/address")"
    echo "export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$folder/token"
    echo "export RADIOPLAT_DASHBOARD=http://$(cat "$folder/dashboard")"
}

free_ports() { # COUNT: different unused ports
    "$python" -c 'import socket, sys
sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(int(sys.argv[1]))]
print(*(s.getsockname()[1] for s in sockets))' "$1"
}

start() { # NAME ARGUMENTS ...: one raylet in its own process group
    setsid "$(dirname "$(command -v "$python")")/ray" start --block --disable-usage-stats "${@:2}" \
        >"$folder/$1.log" 2>&1 </dev/null &
    echo "$! $(started $!)" >>"$folder/groups"
}

started() { # PROCESS: its start, in clock ticks since boot; nothing if there is none
    { sed 's/.*) //' "/proc/$1/stat" | cut -d' ' -f20; } 2>/dev/null || true
}

up() {
    local nodes=${1:-2} gcs dashboard client agent number
    if exists; then
        echo "there is one already: $folder; clusters/local.sh down ends it" >&2
        exit 1
    fi
    if [[ ${RADIOPLAT_LOCAL_FOLDER:-} ]]; then
        mkdir -m 700 "$folder"
    else
        mkdir -p "$(dirname "$record")"
        folder=$(mktemp -d /tmp/radioplat-XXXXXXXX)
        echo "$folder" >"$record"
    fi
    (umask 077 && "$python" -c 'import secrets; print(secrets.token_hex(32), end="")' >"$folder/token")
    export RAY_AUTH_MODE=token RAY_AUTH_TOKEN_PATH=$folder/token RAY_worker_niceness=0
    # `down` ends the whole cluster, so no node needs to be drained.
    export RAY_health_check_period_ms=1000 RAY_GRACEFUL_SHUTDOWN_DRAIN_TIMEOUT_S=0
    unset RAY_ADDRESS
    read -r gcs dashboard client agent < <(free_ports 4)
    echo "127.0.0.1:$dashboard" >"$folder/dashboard"
    # The head runs no training worker, but decode tasks and teachers.
    start head --head --port="$gcs" --dashboard-host=127.0.0.1 --dashboard-port="$dashboard" \
        --ray-client-server-port="$client" --dashboard-agent-listen-port="$agent" --temp-dir="$folder/ray" \
        --num-cpus="${HEAD_CPUS:-4}"
    await_nodes "$gcs" 1
    for ((number = 1; number <= nodes; number++)); do
        read -r agent < <(free_ports 1)
        start "node$number" --address="$(cat "$folder/address")" --dashboard-agent-listen-port="$agent" \
            --num-cpus="${NODE_CPUS:-1}" --resources='{"radioplat_worker": 1}'
        await_nodes "$gcs" $((number + 1)) # two that start at once on one machine take each other for themselves
    done
    environment
}

await_nodes() { # PORT COUNT: until so many nodes have joined
    "$python" - "$folder" "$1" "$2" <<'PYTHON' || { down; exit 1; }
import pathlib, socket, sys, time

import ray

folder, port, count = pathlib.Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
host, until, alive = ray.util.get_node_ip_address(), time.monotonic() + 90, 0
(folder / "address").write_text(f"{host}:{port}")
while alive < count and time.monotonic() < until:
    time.sleep(0.2)
    try:
        socket.create_connection((host, port), 1).close()
        nodes = ray._raylet.GcsClient(address=f"{host}:{port}").get_all_node_info(timeout=5)
        alive = sum(node.state == 0 for node in nodes.values())
    except (OSError, ray.exceptions.RayError):
        continue  # it is not up yet
if alive < count:
    logs = (f"{log.name}: {log.read_text()[-500:]}" for log in sorted(folder.glob("*.log")))
    sys.exit(f"{alive} of {count} nodes joined within 90 seconds\n" + "\n".join(logs))
PYTHON
}

down() {
    exists || return 0
    send TERM || true
    if ! ended; then
        send KILL || true
        ended || true # a killed process is gone a little later
    fi
    rm -rf "$folder"
    [[ ${RADIOPLAT_LOCAL_FOLDER:-} ]] || rm -f "$record"
}

ended() { # whether all processes have ended within five seconds
    for _ in {1..50}; do
        send 0 || return 0
        sleep 0.1
    done
    return 1
}

send() { # SIGNAL: to each group; fails if there is none left
    local group born now found=1
    while read -r group born; do
        now=$(started "$group")
        # A first process that started at another time got the number later, after a restart of the machine.
        if [[ -z $now || $now == "$born" ]] && kill "-$1" -- "-$group" 2>/dev/null; then found=0; fi
    done < <(tac "$folder/groups")
    return $found
}

case ${1:-} in
up) up "${2:-2}" ;;
down) down ;;
environment) environment ;;
*)
    sed -n '2,8s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
