#!/bin/sh
# sandbox.sh [TEMPLATE] - a sandbox with nothing but curl and jq. Needs the variables of `hutch env`.
set -eu
: "${E2B_API_URL:?run: eval \"\$(hutch env)\"}" "${E2B_API_KEY:?}"
api() { curl -fsS -H "X-API-KEY: $E2B_API_KEY" "$@"; }

made=$(api "$E2B_API_URL/v2/sandboxes" -H 'Content-Type: application/json' -d "{\"templateID\": \"${1:-base}\", \"timeout\": 60}")
id=$(printf %s "$made" | jq -r .sandboxID)
token=$(printf %s "$made" | jq -r .envdAccessToken)
trap 'api -X DELETE "$E2B_API_URL/sandboxes/$id"' EXIT
echo "sandbox $id, isolation: $(printf %s "$made" | jq -c .hutch)"

# Port 49983 of a sandbox is the node's own: files and processes.
inside() { curl -fsS -H "E2b-Sandbox-Id: $id" -H 'E2b-Sandbox-Port: 49983' -H "X-Access-Token: $token" "$@"; }
echo 'print(6 * 7)' | inside -X POST "$E2B_API_URL/files?path=job.py" -H 'Content-Type: application/octet-stream' --data-binary @- >/dev/null
inside "$E2B_API_URL/files?path=job.py"
inside "$E2B_API_URL/filesystem.Filesystem/ListDir" -H 'Content-Type: application/json' -d '{"path": "."}' | jq -r '.entries[].path'

echo "what happened so far:"
api "$E2B_API_URL/v1/sandboxes/$id/events?follow=false"
