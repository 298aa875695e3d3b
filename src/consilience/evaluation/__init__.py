"""Does deliberation help? Protocols side by side on the same tasks, with the same models, at equal budget.

comparison = await compare(load_tasks("starter"), ["emergence", "solo", "vote"], models="local")
print(markdown(comparison))
"""

from consilience.evaluation.comparison import Foreseen, Lineup, Observer, Plan, compare, execute, foresee, plan
from consilience.evaluation.results import Budget, Comparison, Difference, Match, RowResult, Run, Setup
from consilience.evaluation.rows import Row
from consilience.evaluation.table import markdown, write
from consilience.evaluation.task_file import Task, TaskSource, choose, load_tasks

__all__ = [
    "Budget",
    "Comparison",
    "Difference",
    "Foreseen",
    "Lineup",
    "Match",
    "Observer",
    "Plan",
    "Row",
    "RowResult",
    "Run",
    "Setup",
    "Task",
    "TaskSource",
    "choose",
    "compare",
    "execute",
    "foresee",
    "load_tasks",
    "markdown",
    "plan",
    "write",
]
