#!/usr/bin/env bash
# What a container of the image does.
#
#   master ADDRESS N [options]     serve at ADDRESS, wait for N workers, train with them
#   worker MASTER [SELF] [options] join the master; SELF, the worker's own address, is checked if it is given
#   COMMAND [options]              any other command of speedo, or master and worker as speedo has them
set -euo pipefail

served="${TMPDIR:-/tmp}/speedo-served" # what the health check connects to
port=56126

stop() {
  printf 'speedo: %s\n' "$1" >&2
  exit 2
}

# address_of NAME: the address that a name has in this container; an address is its own.
address_of() {
  local found
  found="$(getent ahostsv4 "$1" || getent ahosts "$1" || true)"
  [ -n "$found" ] || return 1
  printf '%s\n' "${found%%[[:space:]]*}"
}

# read_port OPTIONS...: the value of --port, if there is one.
read_port() {
  while (($#)); do
    case "$1" in
      --port=*) port="${1#--port=}" ;;
      --port) port="${2:-$port}" ;;
    esac
    shift
  done
}

# secret_file VARIABLE: refuse a file that cannot be read. One that the container engine mounted readable for all
# belongs to root and cannot be closed from here, so a private copy takes its place.
secret_file() {
  local file="${!1:-}" copy
  if [ -z "$file" ] || [ ! -e "$file" ]; then return; fi
  [ -r "$file" ] || stop "$1 is $file, which user $(id -u) of this container cannot read: give it to that user (chown $(id -u))"
  if [ ! -O "$file" ]; then
    copy="$(mktemp)" # mode 0600
    cat -- "$file" >"$copy"
    export "$1=$copy"
  fi
}

secret_file SPEEDO_TOKEN_FILE
if [ -n "${SPEEDO_REDIS_PASSWORD_FILE:-}" ]; then
  [ -r "$SPEEDO_REDIS_PASSWORD_FILE" ] || stop "SPEEDO_REDIS_PASSWORD_FILE is $SPEEDO_REDIS_PASSWORD_FILE, which cannot be read"
  SPEEDO_REDIS_PASSWORD="$(<"$SPEEDO_REDIS_PASSWORD_FILE")"
  export SPEEDO_REDIS_PASSWORD
fi

# serves HOST PORT: for the health check; never written through a link, or into a file, of another user of the container.
serves() {
  if ! rm -f -- "$served" || ! (set -o noclobber && printf '%s %s\n' "$1" "$2" >"$served"); then
    stop "$served cannot be written: it is another user's; remove it, or set TMPDIR to a folder of user $(id -u)"
  fi
}

case "${1:-} ${2:--}" in
  'master -'* | 'worker -'*) ;; # speedo's own form
  master\ *)
    [[ "${3:-}" =~ ^[1-9][0-9]*$ ]] || stop "master $2 ${3:-}: say how many workers to wait for, as in: master $2 3"
    address="$(address_of "$2")" || stop "the name $2 is not known in this container: give an address of it"
    workers="$3"
    shift 3
    read_port "$@"
    serves "$address" "$port"
    set -- master --host "$address" --workers "$workers" "$@"
    ;;
  worker\ *)
    master="$2"
    shift 2
    if (($#)) && [[ "$1" != -* ]]; then
      own="$(address_of "$1")" || stop "the name $1 is not known in this container: leave it out"
      [[ " $(hostname --all-ip-addresses)" == *" $own "* ]] ||
        stop "$1 is no address of this container, which has $(hostname --all-ip-addresses): leave it out"
      shift
    fi
    [[ "$master" == *:* ]] && port="${master##*:}"
    serves "${master%:*}" "$port"
    set -- worker --master "$master" "$@"
    ;;
  speedo\ *) shift ;;
esac
exec speedo "$@"
