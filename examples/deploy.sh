#!/usr/bin/env bash
# Deploys a model: makes a program of an archive, checks it, serves it, asks it, and replaces it while it is served.
#
#     cargo build --release --features serve && PTERON=target/release/pteron bash examples/deploy.sh
#
# Needs curl. Everything is written to a temporary folder, or to the one that is named.
set -euo pipefail
cd "$(dirname "$0")/.."
pteron="${PTERON:-pteron}"
work="${1:-$(mktemp -d)}"
address=127.0.0.1:8017
mkdir -p "$work/models"

# One archive of torch.export, one file to deploy: delegated, with its task metadata, and a test case that it carries along.
"$pteron" compile testdata/archives/channels_last_model/model.pt2 -o "$work/vision.pte" --backend xnnpack \
    --preset imagenet --license MIT
"$pteron" validate "$work/vision.pte"
"$pteron" compare testdata/archives/channels_last_model/model.pt2 "$work/vision.pte"
"$pteron" set-task examples/digits/digits.pte --preset 0..1 --labels examples/digits/labels.txt -o "$work/digits.pte"

# Files appear in the folder of models as a whole: they are written beside it, and moved.
mv "$work/vision.pte" "$work/digits.pte" "$work/models"
"$pteron" serve "$work/models" --listen "$address" --control >"$work/log" 2>&1 &
server=$!
trap 'kill "$server" 2>/dev/null || true' EXIT
for _ in $(seq 100); do
    curl -sf "$address/v2/health/ready" >/dev/null && break
    kill -0 "$server" || { cat "$work/log"; exit 1; }
    sleep 0.1
done
curl -sf "$address/v2/models/digits" && echo

generation() {
    curl -sf "$address/v2/models/digits/infer" -d '{"inputs": [{"name": "input_0", "datatype": "FP32", "shape": [1, 1, 8, 8],
        "data": ['"$(seq -s, 64)"']}]}' | tee "$work/response" | sed -n 's/.*"generation":\([0-9]*\).*/\1/p'
}

# A new version takes the place of the old one between two requests, and none fails.
before=$(generation)
"$pteron" strip "$work/models/digits.pte" -o "$work/new.pte"
mv "$work/new.pte" "$work/models/digits.pte"
curl -sf -X POST "$address/v2/repository/models/digits/load"
after=$(generation)
cat "$work/response" && echo
test "$after" -gt "$before"

# The server ends when it has answered what it had accepted.
kill -TERM "$server"
wait "$server"
trap - EXIT
