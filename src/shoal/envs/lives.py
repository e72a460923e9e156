"""What a vector says, in the info of its steps, of games that have several lives and of environments it has replaced.

The loss of a life ends the learner's episode, and the game goes on: returns and lengths are the whole game's. The row
after it is one whose action is ignored, as after any end, but the game is played on in it.
"""

from __future__ import annotations

LIFE_LOST = "shoal/life_lost"  # bool [B]: what ended with this row is a life and not the game
RESET_REWARD = "shoal/reset_reward"  # float [B]: what the game gave while the next life began
ENDED_AT_RESET = "shoal/ended_at_reset"  # bool [B]: the game ended while the next life began
REPLACED = "shoal/replaced"  # bool [B]: the environment was lost, and this is the first observation of a new one
