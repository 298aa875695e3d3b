"""The prompts of the MCP face: what people do with its tools."""

from __future__ import annotations

from typing import Any

from mcp.server import MCPServer


def add_prompts(server: MCPServer[Any]) -> None:
    """Add the prompts to a server."""

    @server.prompt(title="Decide")
    def decide(question: str) -> str:
        """Debate a decision, and learn what divides informed people on it."""
        return (
            f'Call the tool deliberate with protocol "debate" on this question: {question}\n\n'
            "If the result says that it runs, call status until it has ended. Then tell me the answer, the cruxes "
            "that it turns on, what would change each side's mind, and how far the report says it can be trusted. "
            "Do not smooth over dissent."
        )

    @server.prompt(title="Review my changes")
    def review_changes(range: str = "HEAD") -> str:
        """Review changes that Git records, and mend what is proven."""
        return (
            f'Call the tool review with changes "{range}". If the result says that it runs, call status until it has ended. '
            "Show me each finding with its place and quotation, those with votes against them apart; mend only what I agree to."
        )

    @server.prompt(title="Compare documents")
    def compare_documents(question: str, files: str = "") -> str:
        """Ask what several documents say, and where they contradict each other."""
        named = f" on the files {files}" if files else ""
        return (
            f"Call the tool ask{named} with this task: {question} Say where the documents contradict each other.\n\n"
            "If the result says that it runs, call status until it has ended. Give each contradiction with both quotations."
        )
