#!/usr/bin/env bash
# Installs the Debian packages a node of the local cluster needs, if one is missing. Needs root only then.
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"

missing=()
need() { [[ -e $2 ]] || missing+=("$1"); }
need containerd /usr/bin/containerd
need containerd /usr/bin/ctr
need runc /usr/sbin/runc
need containernetworking-plugins /usr/lib/cni/ptp
need iptables /usr/sbin/iptables
((${#missing[@]})) || exit 0

((EUID == 0)) || die "the local cluster needs these packages; install them as root: ${missing[*]}"
command -v apt-get >/dev/null || die "the local cluster needs containerd, runc, the CNI plugins and iptables; this machine has no apt-get to install them"
say "installing Debian packages for the local cluster: ${missing[*]}"
export DEBIAN_FRONTEND=noninteractive
# The packages start a containerd service on machines with systemd; the cluster runs its own beside it.
apt-get update -q >&2
apt-get install -q -y --no-install-recommends "${missing[@]}" >&2
