"""One round of Flower's SecAgg+, its own client mod and server workflow, driven in one process.

Nothing of the protocol is written again here: ``SecAggPlusWorkflow`` runs as a server runs it and
``secaggplus_mod`` as a client runs it. This file adds what a deployment adds: a grid that carries
messages (in memory, which costs neither side anything), an application that returns the client's
vector, and clocks. The clients' clock runs inside the mod less the application; the server's inside
the workflow less the clients and less the strategy.

Settings: complete graph (``num_shares=1.0``) and threshold t like the side it is compared with;
2^22 quantisation values and modulus 2^32, the defaults; clipping at `CLIP_SIGMAS` deviations of the
vectors; every weight at its maximum. The strategy returns the decoded sum as it is: the default one
would add a mean over n equal copies to the server's time.

Digests: every reply of a deployed client travels as objects named by their SHA-256, which the
sender computes and the receiver checks (``get_object_id``). Neither is inside mod or workflow, so
one pass of it per client is timed apart, and left out of both roles' figures.

Covered: no drops, and clients that drop between sharing keys and uploading. Not covered: transport
and serialisation of messages; noise, which this protocol does not have.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Iterable
from typing import Any

import numpy as np
import numpy.typing as npt
from flwr.app import ConfigRecord, Context, Error, Message, RecordDict
from flwr.client.mod import secaggplus_mod
from flwr.common import Code, FitRes, Status, ndarrays_to_parameters, parameters_to_ndarrays
from flwr.common.secure_aggregation.secaggplus_constants import RECORD_KEY_CONFIGS, Key, Stage
from flwr.compat.common import recorddict_compat
from flwr.server import LegacyContext
from flwr.server.client_manager import SimpleClientManager
from flwr.server.compat.grid_client_proxy import GridClientProxy
from flwr.server.strategy import FedAvg
from flwr.server.workflow import SecAggPlusWorkflow
from flwr.server.workflow.constant import MAIN_CONFIGS_RECORD, MAIN_PARAMS_RECORD
from flwr.server.workflow.constant import Key as WorkflowKey
from flwr.serverapp import Grid
from flwr.supercore.inflatable.inflatable_object import (
    get_all_nested_objects,
    get_object_id,
    no_object_id_recompute,
)
from flwr.supercore.task_identity import TaskIdentity

from secagg_rounds.cost import RoundCost, Stopwatch

CLIP_SIGMAS = 8.0
QUANTISATION = 1 << 22
MAX_WEIGHT = 1000
_RUN_ID = 1
_SERVER_NODE_ID = 1 << 20
_BEFORE_UPLOAD = frozenset({Stage.SETUP, Stage.SHARE_KEYS})

logging.getLogger("flwr").setLevel(logging.ERROR)


class SumStrategy(FedAvg):  # type: ignore[misc]  # a class of a package without types here
    """Hands on what the workflow decoded."""

    def __init__(self, clients: int, watch: Stopwatch) -> None:
        super().__init__(min_fit_clients=clients, min_available_clients=clients)
        self._watch = watch

    def aggregate_fit(self, server_round: int, results: Any, failures: Any) -> Any:
        """Return the mean that the workflow decoded; its time is not the workflow's."""
        del server_round, failures
        with self._watch.on("strategy"):
            return results[0][1].parameters, {}


class MemoryGrid(Grid):  # type: ignore[misc]  # a class of a package without types here
    """Runs the mod of each addressed node and hands back the replies."""

    def __init__(
        self,
        clients: int,
        vector: Callable[[int], npt.NDArray[np.float32]],
        dropped: Collection[int],
        watch: Stopwatch,
    ) -> None:
        self._vector = vector
        self._dropped = dropped
        self._watch = watch
        self._contexts = {
            node_id: Context(
                run_id=_RUN_ID, node_id=node_id, node_config={}, state=RecordDict(), run_config={}
            )
            for node_id in range(1, clients + 1)
        }

    def set_run(self, run: Any) -> None:
        """Refuse: there is one run."""
        raise NotImplementedError

    @property
    def run(self) -> Any:
        """The run, which nothing here asks for."""
        raise NotImplementedError

    def create_message(self, *args: Any, **kwargs: Any) -> Message:
        """Refuse: the workflow makes its messages itself."""
        raise NotImplementedError

    def get_node_ids(self) -> Iterable[int]:
        """Return the clients."""
        return list(self._contexts)

    def push_messages(self, messages: Iterable[Message]) -> Iterable[str]:
        """Refuse: the workflow sends and waits."""
        raise NotImplementedError

    def pull_messages(self, message_ids: Iterable[str]) -> Iterable[Message]:
        """Refuse: the workflow sends and waits."""
        raise NotImplementedError

    def send_and_receive(
        self, messages: Iterable[Message], *, timeout: float | None = None
    ) -> Iterable[Message]:
        """Run the addressed clients one after another."""
        del timeout
        # Listed first, so that making the messages stays the server's work.
        listed = list(messages)
        with self._watch.on("clients"):
            return [self._answer(_own_copy(message)) for message in listed]

    def _answer(self, message: Message) -> Message:
        node_id = message.metadata.dst_node_id
        stage = message.content.config_records[RECORD_KEY_CONFIGS][Key.STAGE]
        if node_id - 1 in self._dropped and stage not in _BEFORE_UPLOAD:
            return Message(Error(code=0, reason="dropped"), reply_to=message)
        application_s = application_cpu_s = 0.0

        def application(received: Message, _: Context) -> Message:
            nonlocal application_s, application_cpu_s
            start, start_cpu = time.perf_counter(), time.process_time()
            result = FitRes(
                status=Status(code=Code.OK, message=""),
                parameters=ndarrays_to_parameters([self._vector(node_id - 1)]),
                num_examples=MAX_WEIGHT,
                metrics={},
            )
            content = recorddict_compat.fitres_to_recorddict(result, keep_input=False)
            application_s = time.perf_counter() - start
            application_cpu_s = time.process_time() - start_cpu
            return Message(content, reply_to=received)

        start, start_cpu = time.perf_counter(), time.process_time()
        reply = secaggplus_mod(message, self._contexts[node_id], application)
        self._watch.charge(
            f"client/{node_id - 1}",
            time.perf_counter() - start - application_s,
            time.process_time() - start_cpu - application_cpu_s,
        )
        self._hash(reply)
        return reply

    def _hash(self, reply: Message) -> None:
        """Time the object ids of a reply, which its sender makes and its receiver checks."""
        with no_object_id_recompute():
            contents = [part.deflate() for part in get_all_nested_objects(reply).values()]
        with self._watch.on("digest"):
            for content in contents:
                get_object_id(content)


def flower_round(
    *,
    n: int,
    t: int,
    vector: Callable[[int], npt.NDArray[np.float32]],
    clip: float,
    dropped: Collection[int],
) -> RoundCost:
    """Run one round of n clients, of whose shares t give a secret back.

    ``vector`` makes the vector of a client, numbered from zero, and is not timed; ``clip`` is the
    largest magnitude of a coordinate.
    """
    watch = Stopwatch()
    grid = MemoryGrid(n, vector, dropped, watch)
    manager = SimpleClientManager()
    for node_id in grid.get_node_ids():
        manager.register(GridClientProxy(node_id=node_id, grid=grid, run_id=_RUN_ID))
    context = LegacyContext(
        context=Context(
            run_id=_RUN_ID,
            node_id=_SERVER_NODE_ID,
            node_config={},
            state=RecordDict(),
            run_config={},
        ),
        strategy=SumStrategy(n, watch),
        client_manager=manager,
    )
    TaskIdentity.task_id, TaskIdentity.run_id = 1, _RUN_ID
    TaskIdentity.node_id = _SERVER_NODE_ID
    context.state.config_records[MAIN_CONFIGS_RECORD] = ConfigRecord({WorkflowKey.CURRENT_ROUND: 1})
    # The model that the round starts from does not matter here and is not what is timed.
    start_from = ndarrays_to_parameters([np.zeros(1, dtype=np.float32)])
    context.state.array_records[MAIN_PARAMS_RECORD] = recorddict_compat.parameters_to_arrayrecord(
        start_from, keep_input=True
    )
    workflow = SecAggPlusWorkflow(
        num_shares=1.0,
        reconstruction_threshold=t,
        max_weight=float(MAX_WEIGHT),
        clipping_range=clip,
        quantization_range=QUANTISATION,
    )
    with watch.on("workflow"):
        workflow(grid, context)
    published = recorddict_compat.arrayrecord_to_parameters(
        context.state.array_records[MAIN_PARAMS_RECORD], keep_input=True
    )
    stayed = [i for i in range(n) if i not in dropped]
    client_s, client_cpu_s = watch.mean([f"client/{i}" for i in stayed])
    server_s, server_cpu_s = (
        spent["workflow"] - spent["clients"] - spent["strategy"]
        for spent in (watch.seconds, watch.cpu_seconds)
    )
    return RoundCost(
        client_s=client_s,
        client_cpu_s=client_cpu_s,
        server_s=server_s,
        server_cpu_s=server_cpu_s,
        mean=parameters_to_ndarrays(published)[0],
        digest_s=watch.seconds["digest"] / len(stayed),
    )


def _own_copy(message: Message) -> Message:
    # The workflow addresses one content object to many clients, and the mod takes keys out of it;
    # a transport would have made the copies.
    content = RecordDict()
    for name, record in message.content.items():
        kept = ConfigRecord(dict(record)) if isinstance(record, ConfigRecord) else record
        content[name] = kept
    return Message(content=content, metadata=message.metadata)
