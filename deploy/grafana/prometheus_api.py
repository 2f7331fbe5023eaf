"""Asks a Prometheus over its HTTP API.

Covered: instant and range queries, values of a label; refusals and a Prometheus that is away are
errors of two kinds, the first with Prometheus' own words. Not covered: histograms of the native
kind, which nothing here exports.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, Self

import httpx2

from deploy.grafana.errors import PrometheusError, QueryError

__all__ = ["PrometheusApi", "Series"]

TIMEOUT_S = 60.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Series:
    """One series of an answer."""

    labels: Mapping[str, str]
    times_unix_s: tuple[float, ...]
    values: tuple[float, ...]
    """As many as times."""


class PrometheusApi:
    """One Prometheus at a base address such as ``http://127.0.0.1:9090``."""

    def __init__(self, url: str) -> None:
        # What a person's shell says of proxies is not for a Prometheus next door.
        self._client = httpx2.Client(base_url=url, timeout=TIMEOUT_S, trust_env=False)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._client.close()

    def instant(self, expr: str, at_unix_s: float) -> tuple[Series, ...]:
        """The value of an expression at one time.

        Raises:
            QueryError: It refuses the query.
            PrometheusError: It is away.
        """
        data = self._post("query", {"query": expr, "time": f"{at_unix_s:.3f}"})
        if data["resultType"] == "scalar":
            return (_series({}, [data["result"]]),)
        return tuple(_series(one["metric"], [one["value"]]) for one in data["result"])

    def range(
        self, expr: str, *, start_unix_s: float, end_unix_s: float, step_s: float
    ) -> tuple[Series, ...]:
        """The values of an expression over time.

        Raises:
            QueryError: It refuses the query.
            PrometheusError: It is away.
        """
        data = self._post(
            "query_range",
            {
                "query": expr,
                "start": f"{start_unix_s:.3f}",
                "end": f"{end_unix_s:.3f}",
                "step": f"{step_s:g}",
            },
        )
        return tuple(_series(one["metric"], one["values"]) for one in data["result"])

    def label_values(
        self, label: str, selector: str, *, start_unix_s: float, end_unix_s: float
    ) -> tuple[str, ...]:
        """Which values a label of some series has, sorted.

        Raises:
            QueryError: It refuses the query.
            PrometheusError: It is away.
        """
        asked = {
            "match[]": selector,
            "start": f"{start_unix_s:.3f}",
            "end": f"{end_unix_s:.3f}",
        }
        return tuple(sorted(self._get(f"label/{label}/values", asked)))

    def _post(self, path: str, form: Mapping[str, str]) -> Any:
        return self._answer("POST", path, data=dict(form))

    def _get(self, path: str, query: Mapping[str, str]) -> Any:
        return self._answer("GET", path, params=dict(query))

    def _answer(self, method: str, path: str, **content: Any) -> Any:
        try:
            response = self._client.request(method, f"/api/v1/{path}", **content)
            said = response.json()
        except (httpx2.HTTPError, ValueError) as error:
            raise PrometheusError(f"no Prometheus at {self._client.base_url}: {error}") from error
        if said.get("status") != "success":
            raise QueryError(f"{said.get('errorType')}: {said.get('error')}")
        return said["data"]


def _series(labels: Mapping[str, str], points: list[tuple[float, str]]) -> Series:
    # float() reads Prometheus' NaN, +Inf and -Inf.
    return Series(
        labels=labels,
        times_unix_s=tuple(float(at) for at, _ in points),
        values=tuple(float(value) for _, value in points),
    )
