"""A plan that can be honoured, read from its document; or every problem of the document.

Ordered checks: what a document may be at all (``federation.plan.toml``); each table on its own
(``federation.plan.tables``); the tables together (``federation.plan.rules``); the privacy part as a
``dp.config.PrivacySpec``, and what the whole run asks of it. A check that fails tells all of its
problems, and the later ones are not made.

Covered: bytes that anybody may have written. Not covered: what ``federation.plan.plan`` leaves out.
"""

from __future__ import annotations

from typing import Final

from pydantic import ValidationError

from dp.errors import PrivacyError
from federation.errors import PlanError, TomlError
from federation.plan.plan import Plan
from federation.plan.rules import problems_between_tables, problems_of_spec
from federation.plan.toml import parse_toml, tuples_of
from federation.plan.wording import explain

MAX_PLAN_BYTES: Final = 64 * 1024
"""A plan is a page of settings; anything longer is not one."""


def read_plan(toml_bytes: bytes) -> Plan:
    """The plan in a document, which is given byte for byte as it was hashed.

    Raises:
        PlanError: With every problem found.
    """
    try:
        document = parse_toml(toml_bytes, max_bytes=MAX_PLAN_BYTES)
        plan = Plan.model_validate(tuples_of(document))
    except TomlError as error:
        raise PlanError([str(error)]) from error
    except ValidationError as error:
        raise PlanError(explain(error, Plan)) from error
    problems = problems_between_tables(plan)
    if not problems:
        try:
            problems = problems_of_spec(plan)
        except PrivacyError as error:
            raise PlanError([f"privacy: {error}"]) from error
    if problems:
        raise PlanError(problems)
    return plan
