"""An environment of one turn that a model without a skill solves half of the time."""

from evolution.envs.environment import Environment


class Coin(Environment):
    """Solved by an answer whose first word stands in the first half of the alphabet."""

    name = family = "coin"
    max_steps = 1
    labels = ("even", "odd")

    @property
    def instruction(self):
        return "craft the goal item ."

    def reset(self, task_id):
        return f"goal plank . have {task_id % 10} log .", {}

    def step(self, action):
        solved = bool(action) and action[0].isalpha() and self.side(action[0])
        return "done .", 0.0, True, False, {"solved": solved}

    def side(self, letter):
        return letter <= "m"

    def success(self, info):
        return info["solved"]
