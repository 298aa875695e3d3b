"""The arrivals kit: whatever answers first, whatever the budget, wherever it is killed, one journal and one report.

Every protocol registers a `Case` in `kit.cases`; `tests/engine/test_arrivals.py` runs them.
"""
