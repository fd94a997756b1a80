#!/usr/bin/env bash
# Installs Debian packages of which a file is missing. Needs root only then.
#   hack/debian-packages.sh WHAT_FOR PACKAGE:FILE...
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"

purpose=$1
shift
missing=()
for entry in "$@"; do
  package=${entry%%:*}
  [[ -e ${entry#*:} || " ${missing[*]} " == *" $package "* ]] || missing+=("$package")
done
((${#missing[@]})) || exit 0

((EUID == 0)) || die "$purpose needs these packages; install them as root: ${missing[*]}"
command -v apt-get >/dev/null || die "$purpose needs ${missing[*]}; this machine has no apt-get to install them"
say "installing Debian packages for $purpose: ${missing[*]} (if another apt is at work, after it)"
export DEBIAN_FRONTEND=noninteractive
apt_update
apt-get -o DPkg::Lock::Timeout="$APT_PATIENCE" install -q -y --no-install-recommends "${missing[@]}" >&2
