#!/usr/bin/env bash
# Runs tests of the kernels as an aarch64 machine would, emulated: `make aarch64`.
#
# Needs pip and Debian's or Ubuntu's apt, no root. Everything lies in .aarch64/ afterwards: an
# emulator, a Python for arm64 with what it needs, and wheels for it. An emulated compiler is slow, so
# a few tensor types stand for all; other arguments are pytest's: `tests/aarch64.sh tests/engine`.
#
# Exit status 77: this system has no apt, or no arm64 packages to be had.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."

home=$PWD/.aarch64
root=$home/root
site=$home/site
pip="${PYTHON:-python3} -m pip --disable-pip-version-check --quiet"

cannot() {
  echo "aarch64: not run: $*"
  exit 77
}

# An apt with a state of its own, which takes this machine for an arm64 one without a package.
arm64_apt() {
  apt-get -qq -o Dir::State="$home/apt" -o Dir::State::status="$home/apt/status" -o Dir::Cache="$home/apt" \
    -o APT::Architecture=arm64 -o APT::Architectures=arm64 -o Debug::NoLocking=1 -o APT::Sandbox::User= "$@"
}

unpack_debs() { # FOLDER TARGET
  for deb in "$1"/*.deb; do dpkg-deb --extract "$deb" "$2"; done
}

set_up() {
  command -v apt-get dpkg-deb > /dev/null || cannot 'no apt here'
  rm -rf "$home"
  mkdir -p "$home"/{apt/lists/partial,apt/archives/partial,qemu,root}
  : > "$home/apt/status"

  echo 'aarch64: fetching an emulator and a Python ...'
  (cd "$home/qemu" && apt-get -qq -o APT::Sandbox::User= download qemu-user-static) || cannot 'no emulator to be had'
  unpack_debs "$home/qemu" "$home/qemu"
  arm64_apt update || cannot 'no lists of arm64 packages'
  arm64_apt --download-only --no-install-recommends --yes install python3 libstdc++6 > /dev/null || cannot 'no arm64 Python'
  unpack_debs "$home/apt/archives" "$root"

  echo 'aarch64: fetching wheels ...'
  local version
  version=$(basename "$(readlink "$root/usr/bin/python3")")
  $pip install --target "$site" --only-binary :all: --python-version "${version#python}" --implementation cp \
    --platform manylinux_2_31_aarch64 --platform manylinux_2_28_aarch64 --platform manylinux_2_27_aarch64 \
    --platform manylinux_2_17_aarch64 --platform manylinux2014_aarch64 --constraint constraints.txt \
    numpy numba gguf tokenizers llguidance jinja2 pytest hypothesis || cannot 'no wheels for arm64'
  touch "$home/ready"
}

# A CPU that this machine is not: compiled for by name, as for an image.
run_tests() { # PROFILE, pytest's arguments
  local profile=$1
  shift
  echo "aarch64: $profile"
  RUSHLIGHT_CPU_PROFILE=$profile RUSHLIGHT_COMPILE_ONLY=1 RUSHLIGHT_CACHE_DIR=$home/cache \
    "$home/qemu/usr/bin/qemu-aarch64-static" -cpu max -L "$root" -E PYTHONPATH="$site" \
    "$root/usr/bin/python3" -m pytest -q -p no:cacheprovider "$@"
}

[ -e "$home/ready" ] || set_up
if [ $# -gt 0 ]; then
  run_tests aarch64 "$@"
else
  kernels=(tests/engine/kernels/test_{simd,eights,tile,activation}.py tests/engine/test_{dots,quants}.py)
  all_of='test_simd.py or test_eights.py or test_tile.py or test_activation.py'
  run_tests aarch64 "${kernels[@]}" -k "$all_of or F16 or Q4_0 or Q8_0 or Q4_K or Q6_K or IQ4_XS or IQ2_S"
  run_tests aarch64-v8.0 "${kernels[@]}" -k "$all_of or Q8_0 or Q4_K"
fi
