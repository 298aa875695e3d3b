"""A two-player game of TextArena, played to its end: an agent that deliberates on every move against a simple opponent.

pip install 'consilience[textarena,local]'
python examples/textarena_game.py --model local
"""

from __future__ import annotations

import argparse
from typing import Any

import textarena

from consilience import Emergence
from consilience.integrations.textarena import DeliberatingAgent, open_moves

PANEL = ("a careful player who first looks how the opponent could win", "a bold player who looks for a winning line")


class FirstSquare:
    """Takes the first move that is open."""

    def __call__(self, observation: str) -> str:
        return open_moves(observation)[0]


def play(game: str, *agents: Any, seed: int = 0) -> tuple[dict[int, int], str]:
    """Play a game to its end; gives the players' rewards and the reason for them."""
    env = textarena.make(env_id=game)
    env.reset(num_players=len(agents), seed=seed)
    done = False
    while not done:
        player, observation = env.get_observation()
        action = agents[player](observation)
        print(f"Player {player}: {action}")
        done, _ = env.step(action=action)
    rewards, info = env.close()
    return rewards, info[0]["reason"]


def main(arguments: list[str] | None = None) -> dict[int, int]:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--game", default="TicTacToe-v0", help="a two-player game that says which moves are open")
    parser.add_argument("--model", help="as for `consilience --model`; the one that it would choose if none is named")
    args = parser.parse_args(arguments)
    agent = DeliberatingAgent(
        Emergence(children=2, max_rounds=1, perspectives=PANEL, reply_tokens=160), model=args.model
    )
    rewards, reason = play(args.game, agent, FirstSquare())
    print(f"{reason} Rewards: {rewards}. Moves that named none of the open ones: {agent.stray}.")
    print(f"See what the agent said: consilience show {agent.sessions[-1]}")
    return rewards


if __name__ == "__main__":
    main()
