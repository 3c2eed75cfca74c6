# Runs in a machine: prints what a trial may change on it, and the traffic on it.
for command in "ip -d link" "ip address" "ip route show table all" "ip rule" "tc -d qdisc" "sysctl -a -r ^net"; do
    echo "# $command"
    $command 2>/dev/null
done
for dev in eth1 eth2; do
    [ -e /sys/class/net/$dev ] || continue
    echo "# $dev"
    tc filter show dev $dev
    ethtool -k $dev
done
echo "# control groups"
find /sys/fs/cgroup -name 'ccbench-traffic-*'
echo "# traffic"
pgrep -l iperf3
true
