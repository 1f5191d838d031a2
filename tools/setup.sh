#!/bin/sh
# Make this checkout ready to work: the Debian packages the lab stands on, and `.venv` with everything Python.
#
# Asks for sudo only to install packages, and only where one is missing; everything else stays in the checkout.
# A second run takes about a second. It may be interrupted at any moment and started again: the stamp that calls
# `.venv` complete is taken away before anything in it changes, and written last.
#   PYTHON=/usr/bin/python3   the Python to build `.venv` with
#   SKIP_PACKAGES=1           leave the system's packages alone
#   WITH_BROWSER=1            install Chromium too (0.4 GB), in which tests open pages, and from npm (where that is installed)
#                             axe-core, with which they check accessibility; without them these tests are skipped
set -eu
cd "$(dirname "$0")/.."

python=${PYTHON:-/usr/bin/python3}
packages="
    qemu-system-x86 qemu-utils
    libvirt-daemon libvirt-daemon-system libvirt-daemon-driver-qemu libvirt-clients
    mmdebstrap bubblewrap uidmap mount debian-archive-keyring e2fsprogs xorriso
    openssh-client ca-certificates git
    nbdkit nbdkit-plugin-dev
    python3 python3-venv python3-dev libvirt-dev gcc libc6-dev pkgconf
"

[ -z "${WITH_BROWSER:-}" ] || packages="$packages chromium chromium-driver"

say() {
    echo "setup: $*"
}

fail() {
    echo "setup: $*" >&2
    exit 3
}

trap 'say "interrupted; run it again to go on" >&2; exit 130' INT
trap 'exit 143' TERM

# One package per line that is not installed; dpkg-query also fails for a name it has never heard of, hence `|| true`.
missing_packages() {
    # shellcheck disable=SC2086 # a list of words
    installed=$(dpkg-query --show --showformat '${db:Status-Status} ${Package}\n' $packages 2>/dev/null || true)
    for package in $packages; do
        case "
$installed
" in
        *"
installed $package
"*) ;;
        *) echo "$package" ;;
        esac
    done
}

install_packages() {
    command -v dpkg-query >/dev/null || {
        # shellcheck disable=SC2086 # a list of words, printed on one line
        say "this is not Debian; install what Debian calls:" $packages
        return 0
    }
    missing=$(missing_packages | tr '\n' ' ')
    [ -n "$missing" ] || return 0

    by_hand="apt-get install --no-install-recommends $missing"
    if [ "$(id -u)" = 0 ]; then
        say "installing Debian packages: $missing"
        as_root="env"
    elif command -v sudo >/dev/null; then
        say "these Debian packages are missing, and sudo is asked to install them: $missing"
        as_root="sudo env"
    else
        fail "these Debian packages are missing, and you are neither root nor is there sudo; have root run: $by_hand"
    fi
    log=$(mktemp)
    trap 'rm -f "$log"' EXIT
    $as_root dpkg --configure -a >"$log" 2>&1 || true # what an interrupted installation left half done
    apt="$as_root DEBIAN_FRONTEND=noninteractive apt-get --quiet --quiet --option DPkg::Lock::Timeout=300"
    $apt update || say "the package lists could not be refreshed; going on with those already here" >&2
    # shellcheck disable=SC2086 # lists of words
    $apt install --yes --no-install-recommends --option Dpkg::Use-Pty=0 $missing </dev/null >"$log" 2>&1 || {
        tail -n 15 "$log" >&2
        fail "the packages could not be installed; see above, or run as root: $by_hand"
    }
}

# Images are built in a user namespace, for which an ordinary user needs a range of subordinate ids.
# Debian gives one to each user made with adduser or useradd; those that came otherwise have none.
give_subordinate_ids() {
    [ "$(id -u)" != 0 ] && command -v getsubids >/dev/null || return 0
    user=$(id -un)
    getsubids "$user" >/dev/null 2>&1 && getsubids -g "$user" >/dev/null 2>&1 && return 0
    first=$(cat /etc/subuid /etc/subgid 2>/dev/null | awk -F : '
        BEGIN { free = 100000 }
        $2 + $3 > free { free = $2 + $3 }
        END { print free }')
    range=$first-$((first + 65535))
    set -- usermod --add-subuids "$range" --add-subgids "$range" "$user"
    say "user '$user' has no subordinate ids, without which no image can be built; running: sudo $*"
    sudo "$@" || say "that failed; have root run: $*" >&2
}

# All that decides what belongs into .venv. Other parts of pyproject.toml may change without a new set-up.
fingerprint() {
    {
        pwd
        "$python" --version
        cat requirements/build.txt requirements/runtime.txt requirements/dev.txt tools/setup.sh
        awk '/^\[/ { keep = /^\[(build-system|project|tool\.hatch)/ } keep' pyproject.toml
    } | sha256sum
}

pip_install() {
    .venv/bin/python -m pip --disable-pip-version-check --no-input install --quiet --no-build-isolation "$@" </dev/null
}

make_environment() {
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' ||
        fail "the lab needs Python 3.11 or later, and '$python' is not; name another one: make setup PYTHON=…"
    stamp=.venv/.setup-stamp
    wanted=$(fingerprint)
    if [ "$wanted" = "$(cat $stamp 2>/dev/null)" ] && [ -x .venv/bin/lab ] && .venv/bin/python -c '' 2>/dev/null; then
        return 0
    fi

    if [ -f $stamp ] && .venv/bin/python -m pip --version >/dev/null 2>&1; then
        say "bringing .venv up to date"
        rm -f $stamp
    else
        say "making .venv (half a minute)"
        rm -f $stamp
        "$python" -m venv --clear .venv || fail "$python cannot make a virtual environment; see above"
    fi
    pip_install --require-hashes -r requirements/build.txt
    pip_install --require-hashes -r requirements/runtime.txt -r requirements/dev.txt
    pip_install --no-deps --editable .
    # pip has compiled the rest; where PYTHONDONTWRITEBYTECODE is set, nobody else would compile this.
    .venv/bin/python -m compileall -q lab || true
    echo "$wanted" >$stamp.new
    mv $stamp.new $stamp
    say "done: .venv/bin/lab"
}

# axe-core, pinned by its hash in tests/axe/package-lock.json.
get_axe() {
    [ -n "${WITH_BROWSER:-}" ] && ! cmp -s tests/axe/package-lock.json tests/axe/node_modules/.setup-stamp || return 0
    command -v npm >/dev/null || { say "npm is not installed: no test checks the accessibility of pages" >&2; return 0; }
    npm ci --prefix tests/axe --ignore-scripts --no-audit --no-fund --silent </dev/null || fail "npm cannot install axe-core"
    cp tests/axe/package-lock.json tests/axe/node_modules/.setup-stamp
}

# Settings that would send pip's work elsewhere; mirrors and certificates stay as the user has them.
unset PYTHONPATH PYTHONHOME PIP_USER PIP_TARGET PIP_PREFIX PIP_ROOT PIP_CONSTRAINT PIP_REQUIRE_VIRTUALENV PIP_NO_BINARY

[ -n "${SKIP_PACKAGES:-}" ] || {
    install_packages
    give_subordinate_ids
}

# Two set-ups at once, as of `make demo` beside `make test`, take turns.
exec 9<requirements
flock 9
make_environment
get_axe
