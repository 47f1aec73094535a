#!/bin/bash
# A Ray cluster of several raylets on this machine, with the ports, the token and the resources of a real one.
#
#   clusters/local.sh up 3                  # a head and three nodes, with room for one training worker each
#   eval "$(clusters/local.sh environment)" # RAY_ADDRESS and the token's file, for `radioplat distill ... cluster.mode=ray`
#   clusters/local.sh down                  # ends the processes that it started, and no others
#
# clusters/local.py, with commands that kill and drain nodes, is for tests of what a run does then.
set -euo pipefail

# Short: names of Ray's sockets must fit in 107 bytes.
readonly folder=${RADIOPLAT_LOCAL_FOLDER:-${XDG_RUNTIME_DIR:-/tmp}/radioplat-local-$UID}
readonly python=${PYTHON:-python}

require_own() { # refuse a folder that somebody else made, and could put processes to end or an address into
    if [[ -L $folder || (-e $folder && ! -O $folder) ]]; then
        echo "$folder is not a folder of yours; name another one in RADIOPLAT_LOCAL_FOLDER" >&2
        exit 1
    fi
}

environment() {
    if [[ ! -e $folder/groups ]]; then
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
    echo $! >>"$folder/groups"
}

up() {
    local nodes=${1:-2} gcs dashboard client agent number
    if [[ -e $folder/groups ]]; then
        echo "there is one already: $folder; clusters/local.sh down ends it" >&2
        exit 1
    fi
    mkdir -p -m 700 "$folder"
    chmod 700 "$folder"
    require_own
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
    local group
    if [[ -e $folder/groups ]]; then
        while read -r group; do kill -TERM -- "-$group" 2>/dev/null || true; done < <(tac "$folder/groups")
        if ! ended; then
            while read -r group; do kill -KILL -- "-$group" 2>/dev/null || true; done <"$folder/groups"
            ended || true # a killed process is gone a little later
        fi
    fi
    rm -rf "$folder"
}

ended() { # whether all processes have ended within five seconds
    for _ in {1..50}; do
        alive || return 0
        sleep 0.1
    done
    return 1
}

alive() { # whether any process of any group is left
    local group
    while read -r group; do kill -0 -- "-$group" 2>/dev/null && return 0; done <"$folder/groups"
    return 1
}

require_own
case ${1:-} in
up) up "${2:-2}" ;;
down) down ;;
environment) environment ;;
*)
    sed -n '2,8s/^# \{0,1\}//p' "$0"
    exit 2
    ;;
esac
