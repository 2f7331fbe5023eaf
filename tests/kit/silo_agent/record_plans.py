"""Plans of the record-level modes over the constant method, and a silo that works under them."""

from federation.plan.read import read_plan
from tests.kit.server import world_plan as swp

STEPS = 3


def stepped_plan(**settings):
    """``record_distributed``: three releases a round."""
    return read_plan(swp.stepped_toml(steps=STEPS, **settings))


def local_plan(**settings):
    """``record_local``: three steps inside the silo, one release a round."""
    text = swp.plan_toml(mode="record_local", noise=1.0, steps=STEPS, **settings).decode()
    line = f"steps_per_round = {STEPS}\n"
    return read_plan(text.replace(line, f"{line}delta_clip_l2 = 4.0\n").encode())
