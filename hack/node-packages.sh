#!/usr/bin/env bash
# Installs what a node of the local cluster needs beside its own program. The packages' containerd service, which starts
# on machines with systemd, is not used: the cluster runs its own.
exec "$(dirname "${BASH_SOURCE[0]}")/debian-packages.sh" "the local cluster" \
  containerd:/usr/bin/containerd containerd:/usr/bin/ctr runc:/usr/sbin/runc \
  containernetworking-plugins:/usr/lib/cni/ptp iptables:/usr/sbin/iptables
