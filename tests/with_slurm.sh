#!/usr/bin/env bash
# Starts a Slurm of one node on this machine, runs a command in it, and stops it: with_slurm.sh COMMAND ...
# It needs root and, on Debian, `apt-get install slurm-wlm munge`. Its files are in a temporary folder.
set -euo pipefail
[ "$(id -u)" = 0 ] || { echo "with_slurm.sh: run it as root" >&2; exit 2; }
for program in munged slurmctld slurmd; do
    command -v "$program" >/dev/null || { echo "with_slurm.sh: no $program: apt-get install slurm-wlm munge" >&2; exit 2; }
done

place=$(mktemp -d)
chmod 755 "$place"
pids=()
stop() {
    for pid in "${pids[@]}"; do kill "$pid" 2>/dev/null || true; done
    wait "${pids[@]}" 2>/dev/null || true
    rm -rf "$place"
}
trap stop EXIT

head -c 1024 /dev/urandom > "$place/munge.key"
chmod 400 "$place/munge.key"
munged --foreground --force --key-file="$place/munge.key" --socket="$place/munge.socket" --pid-file="$place/munge.pid" \
    --log-file="$place/munge.log" --seed-file="$place/munge.seed" 2> "$place/munge.err" &
pids+=($!)

export SLURM_CONF="$place/slurm.conf"
mkdir "$place/state" "$place/spool"
cat > "$SLURM_CONF" <<END
ClusterName=here
SlurmctldHost=$(hostname -s)
AuthType=auth/munge
AuthInfo=socket=$place/munge.socket
SlurmUser=root
SlurmctldPidFile=$place/slurmctld.pid
SlurmdPidFile=$place/slurmd.pid
StateSaveLocation=$place/state
SlurmdSpoolDir=$place/spool
MailProg=/bin/true
ProctrackType=proctrack/pgid
TaskPlugin=task/none
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
ReturnToService=2
KillWait=5
$(slurmd -C | grep NodeName) State=UNKNOWN
PartitionName=main Nodes=ALL Default=YES State=UP
END
printf 'CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n' > "$place/cgroup.conf"
slurmctld -D > "$place/slurmctld.log" 2>&1 &
pids+=($!)
slurmd -D > "$place/slurmd.log" 2>&1 &
pids+=($!)
for _ in $(seq 120); do
    [ "$(sinfo --noheader --format=%t 2>/dev/null)" = idle ] && { "$@"; exit; }
    sleep 1
done
echo "with_slurm.sh: Slurm has not started; its last messages:" >&2
tail -n 5 "$place"/*.log >&2
exit 1
