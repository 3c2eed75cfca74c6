# Runs in each machine at each boot: sets addresses and, at the first boot, installs programs and GRUB's menu. `machine` has NAME, CONTROL,
# EXPERIMENT (DEVICE=ADDRESS …), ROUTES (SUBNET=GATEWAY …) and REBOOTS.
set -eu
here=/run/machine
. $here/machine
echo "$NAME" >/proc/sys/kernel/hostname
addresses=
for word in "eth0=$CONTROL" $EXPERIMENT; do
    # Its driver may be loaded a moment later.
    until [ -e "/sys/class/net/${word%%=*}" ]; do sleep 1; done
    ip link set "${word%%=*}" up
    ip addr add "${word#*=}/24" dev "${word%%=*}"
    [ "${word%%=*}" = eth0 ] || addresses="$addresses ${word#*=}"
done
# shellcheck disable=SC2086 # words
sh $here/install-agent.sh network $addresses $ROUTES
if [ ! -e /etc/ccbench/agent.conf ]; then
    cp -r $here/usr /
    systemd-sysusers ccbench.conf
    mkdir -p /etc/ccbench
    if [ "$REBOOTS" = yes ]; then
        # Debian's menu, with both kernels.
        grub-mkconfig -o /boot/grub/grub.cfg
        mkdir -p /etc/systemd/system/ccbench-agent-worker.service.d
        printf '[Service]\nReadWritePaths=/boot/grub\n' >/etc/systemd/system/ccbench-agent-worker.service.d/reboot.conf
        echo CCBENCH_ALLOW_REBOOT=grub >/etc/ccbench/agent.conf
    else
        : >/etc/ccbench/agent.conf
    fi
fi
# In their own service, so that they outlast this one.
systemd-run --quiet --no-block --unit=machine-commands --property=Restart=always sh $here/commands.sh
sync
echo "@@ $NAME kernel $(uname -r)"
