"""Does deliberation help? Protocols side by side on the same tasks, with the same models, at equal budget.

comparison = await compare(load_tasks("starter"), ["emergence", "solo", "vote"], models="local")
print(markdown(comparison))
"""

from consilience.evaluation.comparison import (
    CompareObserver,
    ComparisonPlan,
    Lineup,
    compare,
    execute,
    plan,
)
from consilience.evaluation.estimates import RowEstimate, estimate_rows
from consilience.evaluation.results import Budget, Comparison, Difference, Match, RowResult, RowSetup, Run
from consilience.evaluation.rows import CompareRow
from consilience.evaluation.table import markdown, write
from consilience.evaluation.task_file import Task, TaskSource, load_tasks, select_tasks

__all__ = [
    "Budget",
    "CompareObserver",
    "CompareRow",
    "Comparison",
    "ComparisonPlan",
    "Difference",
    "Lineup",
    "Match",
    "RowEstimate",
    "RowResult",
    "RowSetup",
    "Run",
    "Task",
    "TaskSource",
    "compare",
    "estimate_rows",
    "execute",
    "load_tasks",
    "markdown",
    "plan",
    "select_tasks",
    "write",
]
