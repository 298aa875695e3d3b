#!/bin/sh
# Two reviewers and a lead review a shell script. The first process in the seat of one reviewer is killed after it has claimed
# its ticket; another process takes the ticket over.
#
#     sh examples/workspace_review.sh SCRIPT [DIRECTORY]
#
# DIRECTORY gets the workspace and the review; the default is a new temporary one. A reviewer is any command that reads a
# ticket on standard input and writes a review on standard output. The default searches SCRIPT for common mistakes. To let a
# coding agent review instead:
#
#     REVIEWER='claude -p' TTL=300 sh examples/workspace_review.sh SCRIPT
set -eu

script=$(realpath -- "$1")
directory=${2:-$(mktemp -d)}
workspace=$directory/workspace
ttl=${TTL:-10} # seconds from a claim to its expiry

# --- reviewers

search_for_mistakes() { # the ticket is on standard input
	if grep -q 'what breaks'; then patterns='rm -rf|eval|\$[a-z]+( |$)'; else patterns='/tmp/|sleep|curl'; fi
	printf '# Review\n\n## Scope\n\nAll lines of %s.\n\n## Findings\n\n```text\n' "$script"
	grep -nE "$patterns" "$script" || echo 'none'
	printf '```\n\n## Recommendations\n\nFix each line above, or state why it is safe.\n'
}

reviewer() { # NAME: answer tickets until the workspace is shut down
	while consilience workspace claim "$workspace" --agent "$1" --wait 300 >"$directory/$1.ticket"; do
		${REVIEWER:-search_for_mistakes} <"$directory/$1.ticket" >"$directory/$1.md"
		claim=$(sed -n '1s/^claim: //p' "$directory/$1.ticket")
		# This is refused if the claim has expired meanwhile: the ticket is another process's then.
		consilience workspace submit "$workspace" "$directory/$1.md" --claim "$claim" || continue
	done
	consilience workspace ack "$workspace" --agent "$1"
}

# --- the lead

consilience workspace new "$workspace" --agents red,blue
red=$(consilience workspace ticket "$workspace" --for red --ttl "$ttl" --max-requeues 2 "Read $script and say what breaks.")
blue=$(consilience workspace ticket "$workspace" --for blue --ttl "$ttl" --max-requeues 2 "Read $script and say what to build.")

# This process claims the ticket of `red` and is killed. It can neither submit an answer nor give the ticket back.
sh -c 'consilience workspace claim "$1" --agent red; kill -KILL $$' sh "$workspace" || echo 'red was killed.'

reviewer red &
reviewer blue &

# Expired claims are swept while this waits.
consilience workspace wait "$workspace" "$red" "$blue" --timeout 120 >"$directory/results" || echo 'A review is missing.'
consilience workspace show "$workspace"

cut -f 3 "$directory/results" | while IFS= read -r result; do
	consilience workspace gate "$result"
	cat "$result"
done >"$directory/review.md"

consilience workspace shutdown "$workspace" --reason 'the review is done'
wait
echo "$directory/review.md"
