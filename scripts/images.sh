#!/usr/bin/env bash
# Builds the image of docker/Dockerfile from a clean clone, without a container engine, and tries it out.
#
#   make images        as root; installs buildah and debootstrap where they are missing
#
# Each container is a host of its own, in a network namespace. One without arguments trains by itself, as the image
# does. Then a master and three workers train LeNet for one epoch with easgd, once undisturbed and once with a worker
# container killed in the middle. Committed files
# count; what is changed in the working tree does not.
#
#   SPEEDO_IMAGE_STORAGE=DIR        keep images and layers here, and build on those of the last time
#   SPEEDO_IMAGE_VOLUMES='A:B ...'  more of this machine that the build is to see, besides pip's index and
#                                   certificates; nothing of it becomes part of the image
#   SPEEDO_IMAGE_PULL=1             pull the base image; otherwise it is made here with debootstrap
set -euo pipefail
# shellcheck source=scripts/build_pycaffe.sh
source "$(dirname "${BASH_SOURCE[0]}")/build_pycaffe.sh"

WORKERS=3
ITERATIONS=938 # one epoch: 60,000 records in batches of 64
ALONE_ITERATIONS=1000 # docker/Dockerfile: CMD
LEAST_ACCURACY=0.80
# With a worker gone nobody may read its share for the rest of the epoch; the run has to learn all the same.
LEAST_ACCURACY_KILLED=0.75
NETWORK=10.78.0
RUN_S=600
# So many merged results are the middle of a run.
MIDDLE=350

work=''
hosts="speedo-$$"
image=localhost/speedo
entrypoint=()
command=() # of a container without arguments
jobs_of=() # process that runs a container, by its number; 0 is the master

main() {
  (($(id -u) == 0)) || stop 'make images makes network namespaces and mounts: run it as root'
  tools
  work="$(mktemp -d)"
  trap clean_up EXIT
  trap 'exit 130' INT
  trap 'exit 143' TERM
  export TMPDIR="$work"
  mkdir "$work/volume" "$work/logs"
  git clone --quiet "$SPEEDO_ROOT" "$work/speedo"
  base="$(sed -n 's/^FROM \(debian:[^ ]*\) .*/\1/p' "$work/speedo/docker/Dockerfile")"
  has_image "docker.io/library/$base" || step "base $base" make_base
  step 'image' build_image
  line size "$image" "$(buildah_ images --format '{{.Size}}' "$image")"
  mapfile -t entrypoint < <(buildah_ inspect --type image --format '{{range .Docker.Config.Entrypoint}}{{println .}}{{end}}' "$image" | sed '/^$/d')

  mapfile -t command < <(buildah_ inspect --type image --format '{{range .Docker.Config.Cmd}}{{println .}}{{end}}' "$image" | sed '/^$/d')

  lay_network
  head -c 32 /dev/urandom | sha256sum | cut -d ' ' -f 1 >"$work/token"
  chmod 600 "$work/token"
  chown -R 1000:1000 "$work/token" "$work/volume"
  run_alone
  run_undisturbed
  run_with_a_kill
  line ready 'image' "in $SECONDS s"
}

tools() {
  local missing
  mapfile -t missing < <(missing_packages buildah debootstrap iproute2)
  ((${#missing[@]} == 0)) || step 'Debian packages' apt-get install --yes --no-install-recommends "${missing[@]}"
}

buildah_() {
  local storage="${SPEEDO_IMAGE_STORAGE:-$work/storage}"
  buildah --root "$storage" --runroot "$work/runroot" "$@"
}

has_image() { buildah_ inspect --type image "$1" >/dev/null 2>&1; }

# --- the image -----------------------------------------------------------------------------------

# make_base: what the slim base image is: a minimal Debian without documentation that starts no service.
make_base() {
  local tree="$work/base" container
  if [ -n "${SPEEDO_IMAGE_PULL:-}" ]; then
    buildah_ pull "docker.io/library/$base"
    return
  fi
  debootstrap --variant=minbase bookworm "$tree" "$(debian_mirrors | head -n 1)"
  printf 'path-exclude /usr/share/%s/*\n' doc man locale >"$tree/etc/dpkg/dpkg.cfg.d/slim"
  rm -rf "$tree"/usr/share/{doc,man,locale}/* "$tree"/var/lib/apt/lists/* "$tree"/var/cache/apt/*
  printf '#!/bin/sh\nexit 101\n' >"$tree/usr/sbin/policy-rc.d"
  chmod 755 "$tree/usr/sbin/policy-rc.d"
  # shellcheck disable=SC2016 # apt's variables, not the shell's
  apt-get indextargets --format '$(LABEL) $(REPO_URI) $(RELEASE) $(COMPONENT)' 'Created-By: Packages' |
    awk '$1 ~ /^Debian/ && $3 ~ /^bookworm/ { print "deb", $2, $3, $4 }' | sort -u >"$tree/etc/apt/sources.list"
  container="$(buildah_ from scratch)"
  tar --create --one-file-system --directory "$tree" --file "$work/base.tar" .
  buildah_ add --quiet "$container" "$work/base.tar" /
  buildah_ config --cmd bash "$container"
  buildah_ commit --quiet --rm --format docker "$container" "docker.io/library/$base"
  rm -rf "$tree" "$work/base.tar"
}

# pip_settings: this machine's index, its time limit and the certificates that it trusts, where pip in the build
# looks for them. Debian's package of certificates, which the build installs, would not let its own folder be taken.
pip_settings() {
  local name value from="$work/pip" certificates="${PIP_CERT:-${SSL_CERT_FILE:-/etc/ssl/certs/ca-certificates.crt}}"
  mkdir "$from"
  printf '[global]\n' >"$from/pip.conf"
  for name in PIP_INDEX_URL PIP_EXTRA_INDEX_URL PIP_DEFAULT_TIMEOUT; do
    value="${name#PIP_}"
    if [ -n "${!name:-}" ]; then printf '%s = %s\n' "${value//_/-}" "${!name}" | sed 's/^[A-Z-]*/\L&/'; fi
  done >>"$from/pip.conf"
  if [ -f "$certificates" ]; then
    cp "$certificates" "$from/certificates.crt"
    echo 'cert = /etc/xdg/pip/certificates.crt' >>"$from/pip.conf"
  fi
  # Other settings of the machine; of two values for one name pip would refuse the file.
  if [ -f /etc/pip.conf ]; then
    awk -F ' *= *' 'NR == FNR { seen[$1] = 1; next } !($1 in seen)' "$from/pip.conf" /etc/pip.conf >>"$from/pip.conf.more"
    cat "$from/pip.conf.more" >>"$from/pip.conf"
    rm "$from/pip.conf.more"
  fi
}

build_image() {
  local volume volumes=()
  pip_settings
  for volume in "$work/pip:/etc/xdg/pip:ro" ${SPEEDO_IMAGE_VOLUMES:-}; do volumes+=(--volume "$volume"); done
  if [ -d "$SPEEDO_CACHE/pycaffe" ]; then
    cp -r "$SPEEDO_CACHE/pycaffe/." "$work/speedo/docker/wheels/"
  fi
  buildah_ bud --isolation chroot --format docker --layers --pull-never "${volumes[@]}" \
    --file "$work/speedo/docker/Dockerfile" --tag "$image" "$work/speedo"
}

# --- hosts ---------------------------------------------------------------------------------------

# lay_network: a host for each container, at NETWORK.10 and up, and a switch between them, all in namespaces.
lay_network() {
  local number host switch="$hosts-switch"
  ip netns add "$switch"
  ip -n "$switch" link add bridge type bridge
  ip -n "$switch" link set bridge up
  for number in $(seq 0 "$WORKERS"); do
    host="$hosts-$number"
    ip netns add "$host"
    ip link add eth0 netns "$host" type veth peer name "port$number" netns "$switch"
    ip -n "$switch" link set "port$number" master bridge up
    ip -n "$host" address add "$NETWORK.$((10 + number))/24" dev eth0
    ip -n "$host" link set lo up
    ip -n "$host" link set eth0 up
  done
}

# in_container NUMBER CONTAINER COMMAND...: run it there. Only the master may write to the volume. There is no
# namespace of processes, so the container's init is not process 1, and is told to collect orphans all the same.
in_container() {
  local number="$1" container="$2" access=ro
  shift 2
  ((number == 0)) && access=rw
  nsenter --net="/run/netns/$hosts-$number" buildah --root "${SPEEDO_IMAGE_STORAGE:-$work/storage}" \
    --runroot "$work/runroot" run --isolation chroot \
    --volume "$work/volume:/srv/speedo:$access" --volume "$work/token:/run/secrets/speedo_token:ro" \
    --env SPEEDO_TOKEN_FILE=/run/secrets/speedo_token --env TINI_SUBREAPER=1 "$container" -- "$@"
}

# start NUMBER NAME ARGUMENT...: a new container on host NUMBER.
start() {
  local number="$1" container="$2"
  shift 2
  buildah_ from --pull-never --name "$container" "$image" >/dev/null
  in_container "$number" "$container" "${entrypoint[@]}" "$@" >"$work/logs/$container.log" 2>&1 &
  jobs_of[number]=$!
}

# start_all RUN: the master and its workers.
start_all() {
  local number
  start 0 "$1-0" master "$NETWORK.10" "$WORKERS" --mode easgd --max-iter "$ITERATIONS" --seed 1 \
    --test-interval 0 --run-dir "/srv/speedo/runs/$1"
  for number in $(seq "$WORKERS"); do
    start "$number" "$1-$number" worker "$NETWORK.10" "$NETWORK.$((10 + number))"
  done
}

# kill_host NUMBER: what a container engine does: every process of the container at once.
kill_host() {
  local pid
  for pid in $(ip netns pids "$hosts-$1"); do
    # Those that are buildah's own report the end of the container.
    case "$(readlink "/proc/$pid/exe" || true)" in */buildah | */memfd:buildah*) ;; *) kill -KILL "$pid" 2>/dev/null || true ;; esac
  done
}

# wait_until SECONDS COMMAND...: stop if it does not come true, or if the master ends before.
wait_until() {
  local deadline=$((SECONDS + $1))
  shift
  until "$@"; do
    ((SECONDS < deadline)) || give_up "this did not come true in time: $*"
    kill -0 "${jobs_of[0]}" 2>/dev/null || give_up "the master's container ended before this came true: $*"
    sleep 0.5
  done
}

merged() { [ "$(grep -c '"merged"' "$work/volume/runs/$1/metrics.jsonl" 2>/dev/null)" -ge "$2" ] 2>/dev/null; }

# status_of NUMBER: the exit status of a container, once it has ended.
status_of() {
  local status=0 deadline=$((SECONDS + RUN_S))
  while kill -0 "${jobs_of[$1]}" 2>/dev/null; do
    ((SECONDS < deadline)) || give_up "container $1 still runs after $RUN_S s"
    sleep 0.5
  done
  wait "${jobs_of[$1]}" || status=$?
  statuses[$1]="$status"
}

give_up() {
  tail -n 12 "$work"/logs/*.log >&2 || true
  stop "$@"
}

# --- the runs ------------------------------------------------------------------------------------

# run_alone: what `docker run IMAGE` does, whose command the image itself names.
run_alone() {
  local words statuses=() run
  line '...' 'train alone' "${command[*]}"
  start 0 alone-0 "${command[@]}"
  status_of 0
  ((statuses[0] == 0)) || give_up "the container ended with ${statuses[0]} instead of 0"
  run="$(basename "$work"/volume/runs/*)"
  words="$(outcome "$run" "$LEAST_ACCURACY" "$ALONE_ITERATIONS")"
  tail -n 2 "$work/logs/alone-0.log" | sed 's/^/        /' >&2
  line 'done' 'train alone' "$words; exit status ${statuses[0]}"
}

run_undisturbed() {
  local number words user statuses=()
  line '...' 'train' "a master and $WORKERS workers, easgd, one epoch"
  start_all calm
  wait_until "$RUN_S" merged calm 1
  for number in 0 1; do in_container "$number" "calm-$number" speedo-healthcheck || give_up "container $number is not healthy"; done
  user="$(in_container 0 calm-0 id -u)" || give_up 'a command in container 0 failed'
  [ "$user" = 1000 ] || give_up "the image runs as user '$user', not 1000"
  for number in $(seq 0 "$WORKERS"); do status_of "$number"; done
  [[ "${statuses[*]}" =~ ^0(\ 0)*$ ]] || give_up "the containers ended with ${statuses[*]} instead of 0"
  words="$(outcome calm "$LEAST_ACCURACY")" # by itself, for a failure in it to end the script
  line 'done' 'train' "$words; exit statuses ${statuses[*]}"
}

run_with_a_kill() {
  local number words statuses=() at
  line '...' 'train, one killed' "worker container $WORKERS is killed in the middle"
  start_all killed
  wait_until "$RUN_S" merged killed "$MIDDLE"
  kill_host "$WORKERS"
  at="$(grep -c '"merged"' "$work/volume/runs/killed/metrics.jsonl")"
  kill -0 "${jobs_of[0]}" 2>/dev/null || give_up 'the run was over before the worker could be killed'
  for number in $(seq 0 "$WORKERS"); do status_of "$number"; done
  [[ "${statuses[*]}" =~ ^0\ 0\ 0\ [1-9] ]] || give_up "the containers ended with ${statuses[*]}; only the last was killed"
  grep -q '"left"' "$work/volume/runs/killed/metrics.jsonl" || give_up 'the run log does not tell that a worker left'
  words="$(outcome killed "$LEAST_ACCURACY_KILLED")"
  line 'done' 'train, one killed' "after $at merges; $words; exit statuses ${statuses[*]}"
}

# outcome RUN LEAST [ITERATIONS]: its result in words; stop if its accuracy is less.
outcome() {
  local iterations="${3:-$ITERATIONS}" file="$work/volume/runs/$1/result.json" accuracy iteration seconds
  accuracy="$(field accuracy "$file")"
  iteration="$(field iteration "$file")"
  seconds="$(field seconds "$file")"
  ((iteration == iterations)) || give_up "the run $1 ended at iteration $iteration"
  [ -s "$work/volume/runs/$1/model.caffemodel" ] || give_up "the run $1 left no model"
  awk -v found="$accuracy" -v least="$2" 'BEGIN { exit !(found >= least) }' ||
    give_up "the run $1 reached accuracy $accuracy, less than $2"
  printf 'accuracy %.4f in %.1f s' "$accuracy" "$seconds"
}

field() { sed -n "s/^ *\"$1\": *\([0-9.]*\).*/\1/p" "$2" | head -n 1; }

# Whatever happened: no process, no namespace, no mount and no file is left.
clean_up() {
  local number pid
  trap '' INT TERM
  end_step
  for number in $(seq 0 "$WORKERS") switch; do
    [ -e "/run/netns/$hosts-$number" ] || continue
    for pid in $(ip netns pids "$hosts-$number"); do kill -KILL "$pid" 2>/dev/null || true; done
    ip netns delete "$hosts-$number"
  done
  wait
  buildah_ rm --all >/dev/null 2>&1 || true
  [ -n "${SPEEDO_IMAGE_STORAGE:-}" ] || buildah_ rmi --all --force >/dev/null 2>&1 || true
  rm -rf --one-file-system "$work" || true
}

main "$@"
