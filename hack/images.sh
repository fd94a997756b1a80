#!/usr/bin/env bash
# Builds the images of this repository, each as an archive .images/NAME.tar, without a container engine.
#   REGISTRY=localhost TAG=dev   the images are named $REGISTRY/NAME:$TAG
#   PUSH=1                       also push them there
#   AGENTS="opencode"            the published agents among them, of opencode, claude, codex; 0.2 to 0.5 GB each
# What has not changed is not built again: programs are kept by the digest of their sources, for all checkouts.
source "$(dirname "${BASH_SOURCE[0]}")/env.sh"

registry=${REGISTRY:-localhost}
tag=${TAG:-dev}
push=${PUSH:-}
read -ra agents <<<"${AGENTS:-opencode}"
out=$ROOT/.images
[[ -z $push || $registry != localhost ]] || die "PUSH=1 needs a registry to push to: make images PUSH=1 REGISTRY=your.registry"
mkdir -p "$out"
mkimage=$("$ROOT/hack/go-bin.sh" images/mkimage)

# Static programs: an image needs no library, not even a C library. With an explicit target these flags reach only what
# runs in the images, not the build scripts. The same in images/Containerfile.
target=$(rustc -vV | sed -n 's/^host: //p')
packages=(subagent-operator subagent-worker scripted-agent fake-llm)
sources=(Cargo.toml Cargo.lock crds link operator worker tests/agents/scripted tests/agents/fake-llm)

# What the programs follow from; a package's own tests do not go into them.
programs_key() {
  { rustc -vV; cd "$ROOT"; digest "${sources[@]}" -not -path '*/tests/*'; } | sha256sum | cut -c1-16
}

# Prints the folder of the programs. The sources are looked at only here, under the lock: whoever waited for somebody
# else's build finds the result of it.
build_programs() {
  local key out p
  key=$(programs_key)
  out=$CACHE/programs-$key
  if [[ ! -d $out ]]; then
    say "compiling ${packages[*]} (static, release; the first time 5 to 20 minutes on two cores)"
    # A person sees it go on; a log is spared hundreds of lines.
    [[ -t 2 ]] || export CARGO_TERM_QUIET=true
    (cd "$ROOT" && RUSTFLAGS="-C target-feature=+crt-static" \
      cargo build --release --locked --target "$target" "${packages[@]/#/--package=}") >&2
    # Edited meanwhile: what came out is for this once, and is not kept as that of these sources.
    [[ $(programs_key) == "$key" ]] || out=$CACHE/programs-edited-$(date +%s%N)
    rm -rf "$out" "$out.new"
    mkdir -p "$out.new"
    for p in "${packages[@]}"; do
      cp "$CARGO_TARGET_DIR/$target/release/$p" "$out.new/$p"
    done
    mv "$out.new" "$out"
    # A developer makes many of these; a day later nobody asks for the older ones.
    find "$CACHE" -maxdepth 1 -name 'programs-*' ! -path "$out" -mmin +1440 -exec rm -rf {} +
  fi
  printf '%s\n' "$out"
}

# image NAME ARGUMENT...: one image, unless these very files were already put into one of this name.
image() {
  local name=$1 stamp
  shift
  local ref=$registry/$name:$tag archive=$out/$name.tar
  stamp=$(printf '%s\n' "$mkimage" "$ref" "$*" | sha256sum | cut -c1-16)
  if [[ ! -f $archive || $(cat "$archive.key" 2>/dev/null) != "$stamp" ]]; then
    "$mkimage" --ref "$ref" -o "$archive" "$@"
    printf '%s\n' "$stamp" >"$archive.key"
    say "$ref -> ${archive#"$ROOT/"}"
  else
    say "$ref is built"
  fi
  [[ -z $push ]] || "$mkimage" --ref "$ref" --push "$@"
}

programs=$(once "$CACHE/programs.lock" build_programs)

# The operator's user is the usual one of images without a user database. An agent's user is what agents commonly get.
image subagent-operator --user 65532:65532 --entrypoint /subagent-operator "$programs/subagent-operator:/subagent-operator"
image subagent-worker --user 65532:65532 --entrypoint /subagent-worker "$programs/subagent-worker:/subagent-worker"
# Nothing but the agent: no shell, no library, no user database.
image scripted-agent --user 1000:1000 --entrypoint /usr/bin/scripted-agent "$programs/scripted-agent:/usr/bin/scripted-agent"
# The same for users that must be refused: root, and one that is only a name.
image scripted-agent-root --entrypoint /usr/bin/scripted-agent "$programs/scripted-agent:/usr/bin/scripted-agent"
image scripted-agent-named --user agent --entrypoint /usr/bin/scripted-agent "$programs/scripted-agent:/usr/bin/scripted-agent"
image fake-llm --user 65532:65532 --entrypoint /fake-llm "$programs/fake-llm:/fake-llm"

# published AGENT PROGRAM ARGUMENT...: the image of a published agent, with node below it where it needs that.
published() {
  local agent=$1 program=$2 tree environment below=()
  shift 2
  tree=$("$ROOT/hack/image-tree.sh" "$agent")
  mapfile -t environment < <(sed 's/^/--env=/' "$ROOT/tests/agents/$agent/image.env")
  if [[ $agent != opencode ]]; then
    # One layer, the same in all of them.
    below=("$node" +)
  fi
  image "$agent-agent" --user 1000:1000 --entrypoint "$program" "${@/#/--cmd=}" "${environment[@]}" "${below[@]}" "$tree"
}

node=
[[ "${agents[*]}" == opencode ]] || node=$("$ROOT/hack/image-tree.sh" node)
for agent in "${agents[@]}"; do
  case $agent in
    opencode) published opencode /usr/bin/opencode acp ;;
    claude) published claude /usr/bin/claude-agent-acp ;;
    codex) published codex /usr/bin/codex-acp ;;
    *) die "AGENTS names $agent; there are opencode, claude and codex" ;;
  esac
done

git=$("$ROOT/hack/image-tree.sh" git)
image git --user 1000:1000 --entrypoint /usr/bin/git --env=PATH=/usr/bin:/bin "$git"
