"""GitHub as a pull request's reviews need it, through its program `gh`, which has the token (GH_TOKEN)."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Callable, Mapping
from typing import Any

from pydantic import ValidationError

from consilience.domain.errors import UserError
from consilience.integrations.pull_requests.threads import Comment, PostedReview, PullRequest, ReviewThread

TIMEOUT_SECONDS = 60
PAGE = 100
MAX_PAGES = 20
"""Of threads, of comments in a thread, and of reviews. A pull request with more is refused: what is on the others is not known."""

_WRITTEN = "fullDatabaseId body url viewerDidAuthor author { __typename login } editor { login }"
_COMMENTS = f"pageInfo {{ hasNextPage endCursor }} nodes {{ {_WRITTEN} authorAssociation }}"
_THREADS = f"""
query Threads($owner: String!, $name: String!, $number: Int!, $after: String) {{
  repository(owner: $owner, name: $name) {{ pullRequest(number: $number) {{
    headRefOid
    reviewThreads(first: {PAGE}, after: $after) {{
      pageInfo {{ hasNextPage endCursor }}
      nodes {{ id isResolved resolvedBy {{ login }} comments(first: {PAGE}) {{ {_COMMENTS} }} }}
    }}
  }} }}
}}"""
_MORE = f"""
query Comments($thread: ID!, $after: String) {{
  node(id: $thread) {{ ... on PullRequestReviewThread {{ comments(first: {PAGE}, after: $after) {{ {_COMMENTS} }} }} }}
}}"""
_REVIEWS = f"""
query Reviews($owner: String!, $name: String!, $number: Int!, $after: String) {{
  repository(owner: $owner, name: $name) {{ pullRequest(number: $number) {{
    reviews(first: {PAGE}, after: $after) {{
      pageInfo {{ hasNextPage endCursor }}
      nodes {{ {_WRITTEN} }}
    }}
  }} }}
}}"""
_RESOLVE = """
mutation Resolve($thread: ID!) {
  resolveReviewThread(input: {threadId: $thread}) { thread { isResolved } }
}"""


class GitHubError(UserError):
    """GitHub, or its program, did not do what it was asked for."""

    status: int = 0
    """The HTTP status; 0 if there was none."""


class GitHub:
    """A pull request on GitHub. Every method raises `GitHubError`, and repeats no request."""

    def __init__(self, repository: str, number: str) -> None:
        if not re.fullmatch(r"[\w.-]+/[\w.-]+", repository):
            raise GitHubError(f"{repository!r} is no repository", do="Write OWNER/NAME.")
        if not re.fullmatch(r"[1-9]\d{0,9}", number):
            raise GitHubError(f"{number!r} is not the number of a pull request", do="Give it as pull-request.")
        self.owner, self.name = repository.split("/")
        self.number = int(number)
        self._pulls = f"repos/{repository}/pulls/{self.number}"

    def read(self, name: str | None = None) -> PullRequest:
        """Return the pull request with its threads and reviews; with a `name`, without those of other series of reviews."""
        place = {"owner": self.owner, "name": self.name, "number": self.number}
        try:
            heads, threads = self._pages(
                _THREADS, place, lambda data: data["repository"]["pullRequest"], "reviewThreads"
            )
            _, reviews = self._pages(_REVIEWS, place, lambda data: data["repository"]["pullRequest"], "reviews")
            for thread in threads:
                page = thread["comments"]["pageInfo"]
                if page["hasNextPage"]:
                    more = {"thread": thread["id"]}
                    _, comments = self._pages(_MORE, more, lambda data: data["node"], "comments", page["endCursor"])
                    thread["comments"]["nodes"] += comments
            pull = PullRequest(
                head=heads["headRefOid"],
                name=name or "",
                threads=tuple(_thread(node) for node in threads if node["comments"]["nodes"]),
                reviews=tuple(
                    PostedReview(id=str(node["fullDatabaseId"]), body=node["body"], is_own=_is_own(node))
                    for node in reviews
                ),
            )
        except (KeyError, TypeError, ValidationError) as error:
            raise GitHubError(f"GitHub's reply has another form: {error}", do="Report this.") from None
        return pull if name is None else pull.of_series(name)

    def post_review(self, request: Mapping[str, object]) -> None:
        self._rest("POST", f"{self._pulls}/reviews", request)

    def update_review(self, review: str, body: str) -> None:
        self._rest("PUT", f"{self._pulls}/reviews/{review}", {"body": body})

    def reply(self, comment: str, body: str) -> None:
        self._rest("POST", f"{self._pulls}/comments/{comment}/replies", {"body": body})

    def resolve(self, thread: str) -> None:
        self._graphql(_RESOLVE, {"thread": thread})

    def _pages(
        self,
        query: str,
        variables: Mapping[str, object],
        owner_of: Callable[[Any], Any],
        connection: str,
        after: str | None = None,
    ) -> tuple[Any, list[Any]]:
        """Return what has the connection, as on the last page, and the nodes of all pages."""
        nodes: list[Any] = []
        for _ in range(MAX_PAGES):
            data = self._graphql(query, {**variables, "after": after})
            try:
                owner = owner_of(data)
                page = owner[connection]
            except (KeyError, TypeError):
                raise GitHubError(
                    f"there is no pull request {self.owner}/{self.name}#{self.number}, or the token cannot read it",
                    do="Give the job the permission pull-requests: read, or write to post.",
                ) from None
            nodes += page["nodes"]
            after = page["pageInfo"]["endCursor"]
            if not page["pageInfo"]["hasNextPage"]:
                return owner, nodes
        raise GitHubError(
            f"the pull request has more than {MAX_PAGES * PAGE} of {connection}", do="Post nothing to it."
        )

    def _graphql(self, query: str, variables: Mapping[str, object]) -> Any:
        reply = self._gh("graphql", {"query": query, "variables": variables})
        if errors := reply.get("errors"):
            raise _error(f"{errors[0].get('message', errors[0])}", 403 if errors[0].get("type") == "FORBIDDEN" else 0)
        return reply.get("data")

    def _rest(self, method: str, path: str, body: Mapping[str, object]) -> None:
        self._gh(path, body, "--method", method)

    def _gh(self, path: str, body: Mapping[str, object], *options: str) -> Any:
        """Run `gh api`. All that comes from elsewhere is in the body, on standard input."""
        command = ["gh", "api", *options, path, "--input", "-"]
        try:
            done = subprocess.run(
                command,
                input=json.dumps(body),
                capture_output=True,
                text=True,
                encoding="utf-8",
                timeout=TIMEOUT_SECONDS,
                check=False,
            )
        except FileNotFoundError:
            raise GitHubError("the program gh was not found", where="PATH", do="Install the GitHub CLI.") from None
        except subprocess.TimeoutExpired:
            raise GitHubError(
                f"GitHub did not reply within {TIMEOUT_SECONDS} seconds", do="Run the job again."
            ) from None
        if done.returncode:
            status = re.search(r"\(HTTP (\d{3})\)", done.stderr)
            raise _error(" ".join(done.stderr.split())[:500] or "no reason", int(status[1]) if status else 0)
        try:
            return json.loads(done.stdout or "{}")
        except ValueError:
            raise GitHubError("the reply of gh is not JSON", do="Report this.") from None


def _is_own(written: Any) -> bool:
    """Return whether the account of the token wrote it, and nobody else was the last to edit it."""
    editor = written["editor"]
    return bool(written["viewerDidAuthor"] and (editor is None or editor == {"login": written["author"]["login"]}))


def _thread(node: Any) -> ReviewThread:
    comments = [
        Comment(
            id=str(comment["fullDatabaseId"]),
            body=comment["body"],
            url=comment["url"],
            is_own=_is_own(comment),
            author=(comment["author"] or {}).get("login", ""),
            is_person=(comment["author"] or {}).get("__typename") == "User",
            association=comment["authorAssociation"],
        )
        for comment in node["comments"]["nodes"]
    ]
    return ReviewThread(
        id=node["id"],
        is_resolved=node["isResolved"],
        resolved_by=(node["resolvedBy"] or {}).get("login", ""),
        comments=tuple(comments),
    )


def _error(message: str, status: int) -> GitHubError:
    do = "Run the job again; nothing is posted twice."
    if status in (401, 403) or "Resource not accessible" in message:
        status = status or 403
        do = (
            "Give the job the permission pull-requests: write, and to resolve threads contents: write. "
            "A run for a fork has a token that only reads."
        )
    error = GitHubError(f"GitHub refused: {message}", do=do)
    error.status = status
    return error
