"""What the coordinator and every silo must compute identically: plans, layouts, updates, the chain.

    transcript/    the transcript of an aggregation, recomputed by whoever reads it
    forecast/      what a plan costs and protects, before it starts, also in the other modes
    wire.py        protobuf
    chain/         tasks, published sums, records, and does the published adapter follow?
    plan/          the run plan: its tables, how it is read, and what it charges
    aggregate/     the methods, the server optimisers and step, the gauge
    adapter/       named tensors ↔ one flat vector, published bytes, a directory for peft
    audit/         an audit log's lines and its signed head
    membership/    invites, renewals, changes of the roster
    advice/        what a model may be told and may propose, and the record that reproduces it
    version.py     versions, protocols, and who can work with whom
    text.py        text from elsewhere, as people are shown it
    errors.py      every refusal

Invariant: no clock, no network, no process, no learning framework. Covered: what is signed, hashed
or verified by more than one party. Not covered: the masked sum itself (``secagg``) and privacy
(``dp``).
"""
