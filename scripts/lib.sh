# shellcheck shell=bash
# What the setup scripts share: saying what happens, running a step with its log, asking what is installed.

SPEEDO_ROOT="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
SPEEDO_CACHE="${SPEEDO_CACHE:-${XDG_CACHE_HOME:-$HOME/.cache}/speedo}"
SPEEDO_LOGS="$SPEEDO_ROOT/build/logs"
step_child=''

say() { printf '%s\n' "$*" >&2; }

# stop MESSAGE...: end with a message, one argument a line.
stop() {
  printf 'speedo setup: %s\n' "$1" >&2
  shift
  if (($#)); then printf '  %s\n' "$@" >&2; fi
  exit 1
}

# line MARK NAME NOTE: one line of the report.
line() { printf '  %-5s %-22s %s\n' "$1" "$2" "$3" >&2; }

# step NAME COMMAND...: run the command with its output in a log; show progress, and on failure the log's end.
step() {
  local name="$1" started="$SECONDS" status=0 log
  shift
  mkdir -p "$SPEEDO_LOGS"
  log="$SPEEDO_LOGS/${name//[^A-Za-z0-9]/-}.log"
  # 9 is setup's lock, which a step must not hold on to.
  (
    set -euo pipefail
    "$@"
  ) >"$log" 2>&1 </dev/null 9>&- &
  step_child=$!
  watch "$step_child" "$name" "$started" "$log"
  wait "$step_child" || status=$?
  step_child=''
  if ((status == 0)); then
    line 'done' "$name" "$((SECONDS - started)) s"
    return
  fi
  line FAIL "$name" "after $((SECONDS - started)) s; the last lines of $log:"
  tail -n 25 "$log" | sed 's/^/        /' >&2
  stop "the step '$name' failed (exit $status)" "its whole output is in $log"
}

# watch PID NAME STARTED LOG: until the process ends, a live line on a terminal, else a sign of life now and then.
watch() {
  local pid="$1" name="$2" started="$3" log="$4" next=$((SECONDS + 30)) last
  [ -t 2 ] || line '...' "$name" ''
  while kill -0 "$pid" 2>/dev/null; do
    sleep 0.2
    if [ -t 2 ]; then
      last="$(tail -n 1 "$log" 2>/dev/null | tr -d '\r' | cut -c 1-48)"
      printf '\r  %-5s %-22s %3d s  %-48s' '...' "$name" "$((SECONDS - started))" "$last" >&2
    elif ((SECONDS >= next)); then
      next=$((SECONDS + 30))
      line '...' "$name" "$((SECONDS - started)) s  $(tail -n 1 "$log" | cut -c 1-60)"
    fi
  done
  [ -t 2 ] && printf '\r\033[K' >&2
  return 0
}

# No step outlives the script: a stopped setup leaves no compiler running.
end_step() {
  [ -n "$step_child" ] || return 0
  end_tree "$step_child"
  step_child=''
}

# end_tree PID: end a process that this script started, and all that it started in turn. They are listed
# before the first is ended: a child whose parent has gone could no longer be found.
end_tree() {
  local family=("$1") next=0
  while ((next < ${#family[@]})); do
    mapfile -t -O "${#family[@]}" family < <(children_of "${family[next]}")
    next=$((next + 1))
  done
  kill "${family[@]}" 2>/dev/null || true
}

children_of() {
  local stat fields
  for stat in /proc/[0-9]*/stat; do
    # "12 (a name) S 3 ...": the parent is the second field after the name.
    read -r fields <"$stat" || continue
    read -ra fields <<<"${fields##*) }"
    [ "${fields[1]}" = "$1" ] && basename "$(dirname "$stat")"
  done 2>/dev/null
  return 0
}

as_root() {
  if (($(id -u) == 0)); then "$@"; else sudo "$@"; fi
}

# debian_release: the number of this machine's release of Debian; nothing on other systems.
debian_release() {
  awk -F '=' '{ gsub("\"", "", $2); value[$1] = $2 } END { if (value["ID"] == "debian") print value["VERSION_ID"] }' \
    /etc/os-release
}

# debian_python RELEASE: the Python that a release brings, and that its Boost.Python is built for.
debian_python() {
  case "$1" in
    12) echo 3.11 ;;
    13) echo 3.13 ;;
  esac
}

# run_packages: the list of the Debian packages that pycaffe's wheel needs on this release; nothing where there is none.
run_packages() {
  local list
  list="$SPEEDO_ROOT/scripts/packages/pycaffe-run-debian-$(debian_release).txt"
  if [ -f "$list" ]; then echo "$list"; fi
}

# names FILE...: what the package lists name, without their comments.
names() { sed -e 's/#.*//' -e '/^[[:space:]]*$/d' "$@"; }

# missing_packages NAME...: those that are not installed.
missing_packages() {
  local name
  for name in "$@"; do
    if [ "$(dpkg-query --show --showformat='${db:Status-Status}' "$name" 2>/dev/null || true)" != installed ]; then
      printf '%s\n' "$name"
    fi
  done
}

# hash_of FILE...: one short name for the contents of these files.
hash_of() { sha256sum -- "$@" | cut -d ' ' -f 1 | sha256sum | cut -c 1-16; }
