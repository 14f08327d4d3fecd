#!/bin/sh
# What a container of either image is, by its first argument:
#   host           a host of the CSV: it waits for SSH, on port 2222 or $SSH_PORT
#   --flag ...     one process: experiment.py with these flags
#   COMMAND ...    something else, such as mpirun
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
    [ "$(id -u)" != 0 ] || fail "a host runs as impala, not as root: leave out --user"
    [ -s "$authorized" ] && [ -r "$authorized" ] ||
        fail "$authorized is not there, empty or not to be read by user $(id -u): mount a folder there that holds the public key of who may log in"
    # Made here and kept in a volume: a host that came with the image would be every host.
    if [ ! -e "$key" ]; then
        [ -w "$HOME/host_keys" ] || fail "user $(id -u) cannot write $HOME/host_keys: mount a volume there, or none"
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
