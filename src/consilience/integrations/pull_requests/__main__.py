"""The steps of the GitHub action: `python -m consilience.integrations.pull_requests STEP DIRECTORY`.

What they need is in environment variables, since inputs of a workflow are no text of a script. `state`, `post` and `resolve` have
GH_TOKEN for `gh`, GITHUB_REPOSITORY, NUMBER, HEAD_REPOSITORY (that of the pull request's branch), and the first two NAME, that of
the series of reviews. `answer` has MODEL and MAX_COST, and the key of the model. GIT_DIR is that of the checkout.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Mapping
from pathlib import Path

from consilience.domain.errors import UserError
from consilience.integrations.pull_requests.answering import ThreadAnswers, answer_replies
from consilience.integrations.pull_requests.github import GitHub, GitHubError
from consilience.integrations.pull_requests.posting import plan_posting
from consilience.integrations.pull_requests.threads import PullRequest
from consilience.protocols.review import ReviewReport
from consilience.targets.git import Git

STATE, PULL, ANSWERS = "earlier.json", "pull.json", "answers.json"
UNPROCESSABLE = 422


def state(directory: Path) -> None:
    """Write what earlier reviews found, for `--since`, and the pull request, for `answer`."""
    pull = _github().read(_name())
    earlier = pull.earlier
    if earlier.commit:
        with Git(Path()) as git:
            places = [place for place in (earlier.commit, earlier.base) if place]
            if gone := [place for place in places if git.line("cat-file", "-t", place) is None]:
                _say("notice", f"Commit {gone[0][:12]} is gone (a force-push): the whole change is reviewed again.")
                earlier = earlier.model_copy(update={"commit": "", "base": ""})
    (directory / STATE).write_text(earlier.model_dump_json(exclude_defaults=True), encoding="utf-8")
    (directory / PULL).write_text(pull.model_dump_json(), encoding="utf-8")


def answer(directory: Path) -> None:
    """Write answers to what maintainers replied, as the model gives them."""
    pull = PullRequest.model_validate_json((directory / PULL).read_text(encoding="utf-8"))
    cost = os.environ.get("MAX_COST", "")
    left = max(float(cost) - (_report(directory).ledger.actual.cost or 0), 0) if cost else None
    if left == 0:
        _say("notice", "max-cost is spent: replies are answered in the next run.")
        return
    with Git(Path()) as git:

        def text_of(file: str) -> str | None:
            data = git.blob(f"{pull.head}:{file}")
            return None if data is None else data.decode("utf-8", "replace")

        answers = answer_replies(pull, os.environ.get("MODEL") or None, text_of, left)
    (directory / ANSWERS).write_text(answers.model_dump_json(), encoding="utf-8")


def post(directory: Path) -> None:
    """Post what is new. The pull request is read again first, so that what another run has posted meanwhile is not posted."""
    github = _github()
    pull = github.read(_name())
    plan = plan_posting(_report(directory), pull)
    for note in plan.notes:
        print(note)
    for comment, body in plan.replies:
        github.reply(comment, body)
    if (directory / ANSWERS).is_file():
        due = {thread.id: (thread, thread.unanswered) for thread in pull.threads}
        for given in ThreadAnswers.model_validate_json((directory / ANSWERS).read_text(encoding="utf-8")).answers:
            thread, reply = due.get(given.thread, (None, None))
            if thread is not None and reply is not None and reply.id == given.to:
                github.reply(thread.comments[0].id, given.body)
    if plan.review is not None:
        try:
            github.post_review(plan.review)
        except GitHubError as error:
            if error.status != UNPROCESSABLE or plan.review_in_text is None:
                raise
            _say("notice", "GitHub does not know one of the lines: all findings are posted in the text of the review.")
            github.post_review(plan.review_in_text)
    elif plan.update is not None:
        github.update_review(*plan.update)


def resolve(directory: Path) -> None:
    """Resolve the program's own threads, of all series, that say that they no longer apply, if nobody has replied to that."""
    github = _github()
    for thread in github.read().threads:
        if thread.finding is not None and thread.is_done and not thread.is_resolved:
            github.resolve(thread.id)


def alerts(directory: Path) -> None:
    """Write the SARIF for code scanning, which does not read suppressions: a suppressed result would be an alert."""
    report = directory / "report"
    log = json.loads((report / "review.sarif").read_text(encoding="utf-8"))
    for run in log["runs"]:
        run["results"] = [result for result in run["results"] if not result.get("suppressions")]
    (report / "upload.sarif").write_text(json.dumps(log, indent=2), encoding="utf-8")


LOCAL = {"answer": answer, "alerts": alerts}
"""Steps that need no GitHub."""
STEPS: Mapping[str, Callable[[Path], None]] = {"state": state, "post": post, "resolve": resolve, **LOCAL}


def main(arguments: list[str]) -> int:
    """Run a step; return the exit code."""
    name, directory = arguments
    repository, head = os.environ.get("GITHUB_REPOSITORY", ""), os.environ.get("HEAD_REPOSITORY", "")
    if name not in LOCAL and head and head != repository:
        _say("notice", "The pull request is from a fork, whose runs have a token that only reads: nothing is posted.")
        return 0
    try:
        STEPS[name](Path(directory))
    except UserError as error:
        _say("error", str(error))
        return 1
    return 0


def _github() -> GitHub:
    return GitHub(os.environ.get("GITHUB_REPOSITORY", ""), os.environ.get("NUMBER", ""))


def _name() -> str:
    return os.environ.get("NAME", "")


def _report(directory: Path) -> ReviewReport:
    return ReviewReport.model_validate_json((directory / "report" / "report.json").read_text(encoding="utf-8"))


def _say(kind: str, text: str) -> None:
    """Print a line that the job's page shows. In it nothing is a command of its own."""
    print(f"::{kind}::" + text.replace("%", "%25").replace("\r", "%0D").replace("\n", "%0A"), flush=True)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
