#!/bin/bash
# A host for the command lines of a document: a running Lasthop with ports, in namespaces of its own (unshare(1), as root).
# Nothing of it is left behind: directories that the lines write to are empty file systems, or overlays of the host's.
#   $1  folder with Lasthop's programs
#   $2  what to run, each with a byte 0 at its end. The first byte says how:
#       r  a command line to its end              p  a program of Python
#       s  one that is interrupted in a moment    c  a part of a configuration, which is checked
#       t  the same, at a terminal                b  one that runs until the block ends
#       e  the block ends
# Prints "ready" and waits for a line, so that guests can connect. Then prints the exit status of each, and the first lines
# that it printed if it failed.
set -u

mount --make-rprivate /
mkdir -p /mnt
mount -t tmpfs scenario /mnt
mkdir -p /mnt/bin /mnt/etc /mnt/usr /mnt/work-etc /mnt/run /mnt/opt /mnt/lib
mount --bind "$1" /mnt/bin
cp "$2" /mnt/lines
for file in "$(dirname "$0")"/*.toml; do cp "$file" /mnt/; done
mount -t overlay scenario -o lowerdir=/etc,upperdir=/mnt/etc,workdir=/mnt/work-etc /etc
for dir in /run /opt /tmp; do mount -t tmpfs scenario $dir; done
mkdir -p /run/lasthop /run/netns /opt/lasthop-1.1 /etc/lasthop
mount --bind /mnt/bin /opt/lasthop-1.1
id=9000
for name in lasthop kvm libvirt libvirt-qemu vm1 vm3; do
    id=$((id + 1))
    getent group $name >/dev/null || echo "$name:x:$id:" >>/etc/group
    getent passwd $name >/dev/null || echo "$name:x:$id:$id::/:/bin/false" >>/etc/passwd
done
mkdir -p /tmp/work && cd /tmp/work
export PATH="/mnt/bin:$PATH" HOME=/tmp/work XDG_RUNTIME_DIR=/tmp LASTHOP_LOG=warn

# Interfaces of uplinks, and the namespaces that the documents name.
ip link set lo up
for name in eth1 eth2; do ip link add $name type veth peer name peer-$name; ip link set $name up; ip link set peer-$name up; done
ip netns add container1
ip netns add blue
ip -n blue link add eth2 type veth peer name peer-eth2
ip -n blue link set eth2 up

cp /mnt/base.toml lasthop.toml
cp lasthop.toml /etc/lasthop/lasthop.toml
{ cat lasthop.toml; printf '\n[[port]]\nname = "new"\nkind = "vhost-user"\nsocket = "new.sock"\n'; } >new.toml
printf 'swordfish' >secret
truncate -s 1M vm1.qcow2
# A pcap file with an ARP request.
printf '\xd4\xc3\xb2\xa1\2\0\4\0\0\0\0\0\0\0\0\0\xff\xff\0\0\1\0\0\0\0\0\0\0\0\0\0\0\x2a\0\0\0\x2a\0\0\0' >frames.pcapng
printf '\xff\xff\xff\xff\xff\xff\x52\x54\0\0\0\1\x08\x06\0\1\x08\0\6\4\0\1\x52\x54\0\0\0\1\x0a\0\0\1\0\0\0\0\0\0\x0a\0\0\2' >>frames.pcapng

: >/tmp/log
lasthop run --config lasthop.toml >/tmp/log 2>&1 &
for _ in $(seq 600); do grep -q '^lasthop: ready' /tmp/log && break; sleep 0.05; done
grep -q '^lasthop: ready' /tmp/log || { cat /tmp/log; exit 1; }
echo ready
# The guests have sent once a line comes; their addresses are known a moment later.
read -r
for _ in $(seq 200); do lasthop trace --port vm1 'udp 10.0.0.1:1 > 10.0.0.2:1' >/dev/null 2>&1 && break; sleep 0.05; done

# Programs of the lines that are not asked for here: they read what Lasthop writes.
tcpdump() { cat >/dev/null; }
wireshark() { cat >/dev/null; }
sudo() { "$@"; }
generate() { cat new.toml; }

# Removes what a line is about to add.
make_room() {
    local words
    read -ra words <<<"$1"
    case "${words[*]:0:3}" in
    'lasthop port add' | 'lasthop segment add' | 'lasthop mirror add' | 'lasthop qos-class add' | 'lasthop qos-group add')
        [[ $1 == *--replace* ]] || lasthop "${words[1]}" remove "${words[3]}" ;;
    'lasthop port forward')
        eval "words=(${1%%#*})"
        [ "${words[3]}" != add ] || lasthop port forward remove "${words[4]}" "${words[5]}" ;;
    'ip netns add') ip netns del "${words[3]}" ;;
    'useradd '*) userdel "${words[-1]}"; groupdel "${words[-1]}" ;;
    esac >/dev/null 2>&1
}

# Runs a line as a job of its own, which Ctrl-C reaches as a whole.
start() {
    set -m
    (eval "$1") >/tmp/out 2>&1 </dev/null &
    set +m
}

interrupt() { # JOB
    kill -INT -- "-$1" 2>/dev/null
    wait "$1"
    local status=$?
    # By the signal, or in the program's own way.
    [ $status = 130 ] || return $status
}

# Checks a part of a configuration: by itself, beside what parts refer to, or as keys of a port.
check() {
    for context in '' segments.toml segments.toml+port.toml; do
        { [ -z "$context" ] || for file in ${context//+/ }; do cat "/mnt/$file"; done; printf '%s\n' "$1"; } >/tmp/part.toml
        lasthop run --check --config /tmp/part.toml --runtime-dir /tmp/none && return
    done
    return 2
}

background=
while IFS= read -r -d '' line; do
    how=${line:0:1} line=${line:1}
    make_room "$line"
    case $how in
    r) eval "$line" >/tmp/out 2>&1 </dev/null ;;
    p) /usr/bin/python3 -c "$line" >/tmp/out 2>&1 ;;
    c) check "$line" >/tmp/out 2>&1 ;;
    s) start "$line"; sleep 0.3; interrupt $! ;;
    t) start "TERM=xterm script -qefc '$line' /dev/null"; sleep 0.3; interrupt $! ;;
    b) start "$line"; background=$!; for _ in $(seq 200); do grep -q '^lasthop: ready' /tmp/out && break; sleep 0.05; done
        grep -q '^lasthop: ready' /tmp/out ;;
    e) [ -z "$background" ] || interrupt $background; background=; continue ;;
    esac
    status=$?
    # A dry run has status 3 where something would change.
    [[ $status != 3 || $line != *--dry-run* ]] || status=0
    printf '%s %s\n' $status "${line//$'\n'/ }"
    [ $status = 0 ] || sed 's/^/    /' /tmp/out | head -n 5
done </mnt/lines
lasthop status >/tmp/out 2>&1 || { echo "1 Lasthop at the end"; tail -n 20 /tmp/log; }
