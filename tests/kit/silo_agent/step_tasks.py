"""Tasks of rounds with several releases, and their plan."""

from federation.chain.task import RoundTask
from tests.kit.secagg.secagg_samples import COORDINATOR_KEY
from tests.kit.silo_agent.record_plans import stepped_plan

PLAN = stepped_plan()


def task(step=1):
    return RoundTask(
        run_id="run-1", round=2, step=step, plan_sha256=bytes(32), roster_sha256=bytes(32),
        roster_epoch=1, base_model_sha256=bytes(32), adapter_sha256=bytes(32),
        ready_deadline_unix_s=1,
    ).sign(COORDINATOR_KEY)  # fmt: skip
