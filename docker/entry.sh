#!/bin/sh
# Entry point of both images. The first argument says what the container runs:
#   host           an SSH server on port 2222 or $SSH_PORT, so that it can be a host of the CSV
#   --flag ...     one process: experiment.py with these flags
#   COMMAND ...    any other command, such as mpirun
set -eu
here=$(dirname "$(dirname "$(readlink -f "$0")")")

fail() {
    echo "error: $1" >&2
    exit 2
}

host() {
    port=${SSH_PORT:-2222}
    key=$HOME/host_keys/ed25519
    authorized=$HOME/.ssh/authorized_keys
    [ "$(id -u)" != 0 ] || fail "a host must run as impala, not as root: leave out --user"
    [ -s "$authorized" ] && [ -r "$authorized" ] ||
        fail "$authorized is missing, empty or not readable by user $(id -u): mount a folder there that holds the public keys of the users who may log in"
    # The host key is made here and kept in a volume; one in the image would be that of every host.
    if [ ! -e "$key" ]; then
        [ -w "$HOME/host_keys" ] || fail "user $(id -u) cannot write $HOME/host_keys: mount a volume that it can write there, or none"
        ssh-keygen -q -t ed25519 -N '' -C impala_mm -f "$key"
    fi
    echo "in the CSV: ssh_port $port, ssh_username $(id -un), python $(command -v python), workdir $here"
    echo "host key: $(ssh-keygen -l -f "$key.pub")"
    exec /usr/sbin/sshd -D -e -f "$here/docker/sshd_config" -h "$key" -p "$port"
}

case ${1:-} in
host) host ;;
'' | -*) exec python "$here/experiment.py" "$@" ;;
*) exec "$@" ;;
esac
