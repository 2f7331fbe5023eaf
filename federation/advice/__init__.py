"""What a model may be told of a round, what it may propose, and the record that reproduces it.

    record.py        one consultation, turn by turn, and its replay without a model
    conversation.py  request after request, as a function of the answers so far
    reply.py         an endpoint's answer, read
    tools.py         what a model may look up, answered from the state
    state.py         what a model may see
    proposal.py      what a model may propose, and the judge
    strict_json.py   JSON from a model or an endpoint, within bounds

Invariant: no network, no clock, no random numbers: the same answers come to the same outcome.
"""
