#!/bin/sh
# hosts.sh: several machines on this one: network, UTS and process namespaces joined by a bridge, a hostfile, and an
# agent in place of ssh. Runs a command on the first of them (node1), with Open MPI's settings in the environment;
# everything ends with it. FOLDER gets `hostfile`, `agent HOST COMMAND...` and `end_host HOST`, which kills all that runs
# on a host other than node1.
#   hosts.sh HOSTS SLOTS FOLDER COMMAND...
set -eu
if [ "${SPL_HOSTS_INSIDE-}" != 1 ]; then
    SPL_HOSTS_INSIDE=1 exec unshare --net --mount --pid --fork --mount-proc --kill-child "$0" "$@"
fi
n=$1 slots=$2 folder=$3
shift 3
ip link set lo up
ip link add spl0 type bridge
ip link set spl0 up
: > "$folder/hostfile"
i=1
while [ "$i" -le "$n" ]; do
    name=node$i
    # a process namespace of its own is what ends a whole machine at once; the first one, from where the others are
    # entered, has none, since siblings cannot enter each other's
    if [ "$i" = 1 ]; then
        unshare --net --uts sh -c "hostname $name; exec sleep 100000" &
        pid=$!
    else
        unshare --net --uts --pid --fork --kill-child sh -c "hostname $name; exec sleep 100000" &
        outer=$! pid=
        while [ -z "$pid" ]; do
            pid=$(tr -d ' ' < "/proc/$outer/task/$outer/children")
            sleep 0.02
        done
    fi
    while [ "$(nsenter -t "$pid" -u hostname)" != "$name" ]; do sleep 0.02; done
    echo "$pid" > "$folder/$name.pid"
    ip link add veth$i type veth peer name eth0 netns "$pid"
    ip link set veth$i master spl0 up
    nsenter -t "$pid" -n ip addr add 10.77.0.$i/24 dev eth0
    nsenter -t "$pid" -n ip link set eth0 up
    nsenter -t "$pid" -n ip link set lo up
    echo "$name slots=$slots" >> "$folder/hostfile"
    i=$((i + 1))
done
cat > "$folder/agent" << END
#!/bin/sh
host=\$1
shift
nsenter -t "\$(cat "$folder/\$host.pid")" -n -u -p -- sh -c "\$*" && exit 0
echo "Connection to \$host closed by remote host." >&2
exit 255
END
cat > "$folder/end_host" << END
#!/bin/sh
kill -9 "\$(cat "$folder/\$1.pid")"
END
chmod +x "$folder/agent" "$folder/end_host"
export OMPI_MCA_plm_rsh_agent="$folder/agent" OMPI_MCA_orte_default_hostfile="$folder/hostfile"
export OMPI_MCA_btl_tcp_if_include=10.77.0.0/24 OMPI_MCA_oob_tcp_if_include=10.77.0.0/24
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
nsenter -t "$(cat "$folder/node1.pid")" -n -u -- "$@"
