#!/usr/bin/env bash
# The TorchRec tests under both generations: (torch 2.13, fbgemm 1.8, torchrec 1.8) and
# (2.14, 1.9, 1.9), each in an environment of its own that is made on the first run.
#
#   requirements/run_matrix.sh [FOLDER [PYTEST ARGUMENTS ...]]
#
# FOLDER holds the environments (default: .venv-matrix). Without arguments, pytest runs the default tests
# of tests/integration; `-m torchrec` runs the slow ones as well.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
folder="${1:-.venv-matrix}"
shift || true

failed=0
for generation in dev torchrec-1.9; do
    environment="$folder/$generation"
    if [[ ! -x "$environment/bin/pytest" ]]; then
        python3 -m venv "$environment"
        "$environment/bin/pip" install -q -r "requirements/$generation.txt"
    fi
    "$environment/bin/python" -c '
from importlib.metadata import version
print("== torch", version("torch"), "fbgemm", version("fbgemm-gpu-cpu"), "torchrec", version("torchrec"))'
    "$environment/bin/python" -m pytest tests/integration "$@" || failed=1
done
exit "$failed"
