"""Agents debate in virtual time to find the question that divides them.

`protocol` is the algorithm, `settings` what can be set, `moves` the vocabulary with the seed's invariants.

- The exchange: `floor` is what all seats share. `debaters` look, compose and speak, by `attention`; `turns` takes what they said
  into `threads`, and `lock` is what a thread requires and lets through. The `moderator` leads threads through their stages, with
  the `agenda` (active disputes, further threads) and the `crystallizer` (cruxes).
- In private: `ballots` (sealed positions), `stipulations` (tested cruxes, new facts), `single` (one call to compare with).
- Data: `replies` are what models return, `records` what is reported, `notes` what the journal holds; `scoring` is the arithmetic.
- The report: `outcome` makes it from a run, `progress` from the notes of an unfinished one; `report` and `state` hold it, and
  `sections`, `brief`, `crux_sections` and `views` show it.
"""

from consilience.protocols.debate.protocol import Debate
from consilience.protocols.debate.report import DebateReport

__all__ = ["Debate", "DebateReport"]
