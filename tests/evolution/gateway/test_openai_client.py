"""The gateway as the real ``openai`` client sees it: answers, streams, tools, models, refusals."""

import json

import openai
import pytest

from evolution.errors import (
    HarnessHistoryError,
    HarnessLimitError,
    HarnessModelError,
    HarnessReportError,
)
from tests.kit.evolution import harnesses as hs
from tests.kit.evolution.scripted_engine import (
    PLAIN,
    WITH_TOOLS,
    ScriptedEngine,
    five_fields,
    recorded_fields,
)

HELLO = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hello?"}]
WEATHER = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a town.",
        "parameters": {"type": "object", "properties": {"town": {"type": "string"}}},
    },
}
ASKS = '<tool_call>\n{"name": "weather", "arguments": {"town": "Ulm"}}\n</tool_call>'


def reported(session, reward=1.0):
    session.finish(json.dumps({"reward": reward}).encode())
    return session.trajectory(7)


def test_a_conversation_becomes_what_the_engine_saw(tmp_path):
    session, seen = hs.session(ScriptedEngine("Hello.", "Fine, and you?", "Bye."))
    with hs.client(session) as client:
        messages = list(HELLO)
        for text in ("How are you?", "Well.", None):
            done = client.chat.completions.create(model=session.model, messages=messages)
            messages.append(done.choices[0].message.model_dump())
            messages.append({"role": "user", "content": text})
    assert [m["content"] for m in messages if m["role"] == "assistant"] == [
        "Hello.",
        "Fine, and you?",
        "Bye.",
    ]
    played = reported(session)
    assert five_fields(played) == recorded_fields(seen.calls, 1.0)
    assert played.adapter_sha256 == "a" * 64
    assert (played.round, played.success, played.truncated) == (7, True, False)
    assert [step.reward for step in played.steps] == [0.0, 0.0, 1.0]
    text = seen.chat._tokenizer.decode(list(played.token_ids))
    assert text == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello?<|im_end|>\n"
        "<|im_start|>assistant\nHello.<|im_end|>\n<|im_start|>user\nHow are you?<|im_end|>\n"
        "<|im_start|>assistant\nFine, and you?<|im_end|>\n<|im_start|>user\nWell.<|im_end|>\n"
        "<|im_start|>assistant\nBye.<|im_end|>"
    )


def test_usage_and_finish_reasons():
    session, seen = hs.session(ScriptedEngine("one two three"))
    with hs.client(session) as client:
        done = client.chat.completions.create(model=session.model, messages=HELLO)
        assert done.choices[0].finish_reason == "stop"
        ((_, prompt, answer, _),) = seen.calls
        assert done.usage.prompt_tokens == len(prompt)
        assert done.usage.completion_tokens == len(answer.token_ids)
        short = client.chat.completions.create(
            model=session.model,
            messages=[*HELLO, done.choices[0].message, HELLO[1]],
            max_completion_tokens=4,
        )
    assert short.choices[0].message.content == "one"
    assert short.choices[0].finish_reason == "length"
    assert reported(session).steps[1].cut_off


def test_after_an_answer_that_was_cut_off_its_end_is_context():
    session, seen = hs.session(ScriptedEngine("one two three"), max_new_tokens=3)
    with hs.client(session) as client:
        first = client.chat.completions.create(model=session.model, messages=HELLO)
        again = [*HELLO, first.choices[0].message, HELLO[1]]
        client.chat.completions.create(model=session.model, messages=again)
    end = seen.chat.turn_end_id
    first, second = reported(session).steps
    assert end not in first.action_ids
    assert second.context_ids[0] == end


@pytest.mark.parametrize("usage", [False, True])
def test_a_stream_says_the_same(usage):
    session, seen = hs.session(ScriptedEngine("Good day."))
    options = {"stream_options": {"include_usage": True}} if usage else {}
    with hs.client(session) as client:
        events = list(
            client.chat.completions.create(
                model=session.model, messages=HELLO, stream=True, **options
            )
        )
    said = "".join(c.delta.content or "" for e in events for c in e.choices)
    assert said == "Good day."
    reasons = [c.finish_reason for e in events for c in e.choices]
    assert reasons == [None] * (len(reasons) - 1) + ["stop"]
    assert [e.usage.completion_tokens for e in events if e.usage] == (
        [len(seen.calls[0][2].token_ids)] if usage else []
    )


@pytest.mark.parametrize("template", [PLAIN, WITH_TOOLS], ids=["plain", "native"])
@pytest.mark.parametrize("streamed", [False, True])
def test_tools_are_shown_called_and_answered(template, streamed):
    session, seen = hs.session(ScriptedEngine(ASKS, "It rains.", template=template))
    with hs.client(session) as client:
        if streamed:
            with client.chat.completions.stream(
                model=session.model, messages=HELLO, tools=[WEATHER]
            ) as events:
                for _ in events:
                    pass
                done = events.get_final_completion()
        else:
            done = client.chat.completions.create(
                model=session.model, messages=HELLO, tools=[WEATHER], tool_choice="auto"
            )
        choice = done.choices[0]
        assert choice.finish_reason == "tool_calls"
        (call,) = choice.message.tool_calls
        assert call.function.name == "weather"
        assert json.loads(call.function.arguments) == {"town": "Ulm"}
        assert not choice.message.content
        echo = {
            "role": "assistant",
            # As some frameworks send it back: their own spacing, no content.
            "tool_calls": [
                {
                    "id": call.id,
                    "type": "function",
                    "function": {"name": "weather", "arguments": '{ "town":"Ulm" }'},
                }
            ],
        }
        result = {"role": "tool", "tool_call_id": call.id, "content": "rain"}
        last = client.chat.completions.create(
            model=session.model, messages=[*HELLO, echo, result], tools=[WEATHER]
        )
    assert last.choices[0].message.content == "It rains."
    played = reported(session)
    assert five_fields(played) == recorded_fields(seen.calls, 1.0)
    text = seen.chat._tokenizer.decode(list(played.token_ids))
    # What the model wrote stands there as it wrote it, and once.
    assert text.count(ASKS) == 1
    assert text.count('"name": "weather", "description"') == 1
    assert text.count("<tool_response>\nrain\n</tool_response>") == 1
    assert played.steps[0].action == 'weather({"town": "Ulm"})'


def test_what_looks_like_a_call_and_is_none_is_text_and_invalid():
    broken = "<tool_call>{'name': weather}</tool_call>"
    session, _ = hs.session(ScriptedEngine(broken))
    with hs.client(session) as client:
        done = client.chat.completions.create(model=session.model, messages=HELLO, tools=[WEATHER])
    assert done.choices[0].message.content == broken
    assert done.choices[0].finish_reason == "stop"
    assert reported(session).steps[0].invalid


def test_models_are_the_sessions_one():
    session, _ = hs.session(ScriptedEngine("x"))
    with hs.client(session) as client:
        assert [m.id for m in client.models.list()] == [session.model]
        assert client.models.retrieve(session.model).id == session.model
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("gpt-5")
    assert session.model == "chorale-" + "a" * 16


def test_another_model_ends_the_session_and_no_report_helps():
    session, seen = hs.session(ScriptedEngine("x"))
    with hs.client(session) as client:
        client.chat.completions.create(model=session.model, messages=HELLO)
        with pytest.raises(openai.NotFoundError) as refused:
            client.chat.completions.create(model="gpt-5", messages=HELLO)
        assert refused.value.code == "model_not_found"
        with pytest.raises(openai.PermissionDeniedError):
            client.post("/reward", body={"reward": 1.0}, cast_to=object)
    assert isinstance(session.ended_by, HarnessModelError)
    assert reported(session) is None
    assert len(seen.calls) == 1


def test_only_the_sessions_token_is_heard():
    session, seen = hs.session(ScriptedEngine("x"))
    other, _ = hs.session(ScriptedEngine("x"))
    with hs.client(session) as client, hs.client(other) as stranger:
        for key in ("", "x", stranger.api_key, client.api_key[:-1]):
            with pytest.raises(openai.AuthenticationError):
                client.with_options(api_key=key or "-").chat.completions.create(
                    model=session.model, messages=HELLO
                )
        assert not seen.calls
        assert client.api_key not in repr(client.base_url)
        client.chat.completions.create(model=session.model, messages=HELLO)
    assert session.ended_by is None


def test_an_edited_history_ends_the_session():
    session, seen = hs.session(ScriptedEngine("x"))
    with hs.client(session) as client:
        client.chat.completions.create(model=session.model, messages=HELLO)
        edited = [HELLO[0], {"role": "user", "content": "Good-bye?"}]
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model=session.model, messages=edited)
    assert refused.value.code == "history_edited"
    assert isinstance(session.ended_by, HarnessHistoryError)
    assert reported(session) is None
    assert len(seen.calls) == 1


def test_where_forks_are_allowed_the_last_trace_is_the_trajectory():
    table = hs.spec(max_forks=2)
    session, seen = hs.session(ScriptedEngine("one", "two", "three"), table)
    compact = [{"role": "user", "content": "In short: hello."}]
    with hs.client(session) as client:

        def say(messages):
            done = client.chat.completions.create(model=session.model, messages=messages)
            return [*messages, done.choices[0].message, {"role": "user", "content": "more"}]

        first = say(HELLO)
        say(first)
        second = say(compact)
        say(second)
        # The first is still there to go on with, before its second answer it is another.
        say([*first[:-1], {"role": "user", "content": "else"}])
        with pytest.raises(openai.BadRequestError):
            say([{"role": "user", "content": "a fourth"}])
    assert isinstance(session.ended_by, HarnessHistoryError)
    by_key = {}
    for call in seen.calls:
        by_key.setdefault(call[0], []).append(call)
    # Each trace has draws of its own, and each is what the engine saw.
    assert list(map(len, by_key.values())) == [2, 2, 1]
    for calls in by_key.values():
        recorded_fields(calls, 0.0)


def test_a_compacted_session_is_the_trace_that_its_last_answer_belongs_to():
    session, seen = hs.session(ScriptedEngine("one", "two"), hs.spec(max_forks=1))
    compact = [{"role": "user", "content": "In short: hello."}]
    with hs.client(session) as client:
        for messages in (HELLO, compact):
            done = client.chat.completions.create(model=session.model, messages=messages)
        more = [*compact, done.choices[0].message, {"role": "user", "content": "more"}]
        client.chat.completions.create(model=session.model, messages=more)
    played = reported(session)
    assert five_fields(played) == recorded_fields(seen.calls[1:], 1.0)


def test_other_tools_are_another_history():
    session, _ = hs.session(ScriptedEngine("x"))
    with hs.client(session) as client:
        done = client.chat.completions.create(model=session.model, messages=HELLO)
        more = [*HELLO, done.choices[0].message, HELLO[1]]
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model=session.model, messages=more, tools=[WEATHER])


def test_the_same_question_again_is_an_edited_history():
    """A client that tries again would have its answer twice, and the trace holds one."""
    session, _ = hs.session(ScriptedEngine("x"))
    with hs.client(session) as client:
        client.chat.completions.create(model=session.model, messages=HELLO)
        with pytest.raises(openai.BadRequestError):
            client.chat.completions.create(model=session.model, messages=HELLO)


@pytest.mark.parametrize(
    "more",
    [
        {"n": 2},
        {"temperature": 0.5},
        {"top_p": 0.9},
        {"presence_penalty": 0.1},
        {"frequency_penalty": -1.0},
        {"logit_bias": {"50256": -100}},
        {"stop": ["\n"]},
        {"stop": "END"},
        {"seed": 4},
        {"logprobs": True},
        {"response_format": {"type": "json_object"}},
        {"tool_choice": "required", "tools": [WEATHER]},
        {"parallel_tool_calls": False, "tools": [WEATHER]},
        {"extra_body": {"top_k": 40}},
        {"max_tokens": 0},
        {"messages": []},
        {"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {}}]}]},
        {"messages": [{"role": "robot", "content": "x"}]},
        {"messages": [{"role": "user", "content": "x", "name": "bob"}]},
    ],
    ids="-".join,
)
def test_what_cannot_be_honoured_is_refused_and_the_session_goes_on(more):
    session, seen = hs.session(ScriptedEngine("x"))
    with hs.client(session) as client:
        body = {"model": session.model, "messages": HELLO, **more}
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(**body)
        assert refused.value.type == "invalid_request_error"
        assert refused.value.param
        assert not seen.calls
        client.chat.completions.create(model=session.model, messages=HELLO)
    assert reported(session).success


def test_defaults_and_labels_of_frameworks_are_taken():
    session, seen = hs.session(ScriptedEngine("x"), temperature=0.7)
    with hs.client(session) as client:
        client.chat.completions.create(
            model=session.model,
            messages=[{"role": "user", "content": [{"type": "text", "text": "Hello?"}]}],
            n=1,
            temperature=0.7,
            top_p=1.0,
            presence_penalty=0,
            frequency_penalty=0.0,
            logit_bias={},
            logprobs=False,
            stop=None,
            seed=None,
            user="somebody",
            metadata={"a": "b"},
            store=False,
            service_tier="auto",
            response_format={"type": "text"},
            parallel_tool_calls=True,
            max_tokens=100_000,
        )
    assert len(seen.calls) == 1


def asked_until_refused(session, client):
    """The error that ends a harness which asks for ever."""
    messages = list(HELLO)
    for _ in range(9):
        try:
            done = client.chat.completions.create(model=session.model, messages=messages)
        except openai.PermissionDeniedError as refused:
            return refused
        messages += [done.choices[0].message, HELLO[1]]
    return None


# With 20 tokens for an answer three requests take up to 64, 92 and 120.
@pytest.mark.parametrize(
    ("limits", "code"),
    [
        ({"max_steps": 2}, "max_steps"),
        ({"max_tokens": 100}, "max_tokens"),
        ({"context": 100}, "context_length_exceeded"),
    ],
)
def test_limits_in_numbers_end_a_try_unsolved_and_keep_it(limits, code):
    limits = dict(limits)
    engine = ScriptedEngine("x", context_limit=limits.pop("context", 100_000))
    # Rewards may be negative: a try without a report has the least of them.
    table = hs.spec(**{"reward_range": (-2.0, 1.0), **limits})
    session, seen = hs.session(engine, table, max_new_tokens=20)
    with hs.client(session) as client:
        assert asked_until_refused(session, client).code == code
    assert isinstance(session.ended_by, HarnessLimitError)
    played = session.trajectory(0)
    assert len(played.steps) == 2
    assert (played.success, played.truncated, played.reward) == (False, True, -2.0)
    assert five_fields(played) == recorded_fields(seen.calls, -2.0)


def test_a_model_without_a_word_ends_the_try():
    engine = ScriptedEngine("word", "", "word", "", " ", "word")
    session, seen = hs.session(engine, hs.spec(max_empty_answers=2))
    with hs.client(session) as client:
        assert asked_until_refused(session, client).code == "max_empty_answers"
    assert len(session.trajectory(0).steps) == len(seen.calls) == 5


def test_a_history_that_is_too_long_at_first_may_be_shortened():
    session, seen = hs.session(ScriptedEngine("x", context_limit=2_200))
    with hs.client(session) as client:
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(
                model=session.model, messages=[{"role": "user", "content": "a" * 300}]
            )
        assert refused.value.code == "context_length_exceeded"
        client.chat.completions.create(model=session.model, messages=HELLO)
    assert five_fields(reported(session)) == recorded_fields(seen.calls, 1.0)


@pytest.mark.parametrize(
    "report",
    [
        {"reward": 1.5},
        {"reward": -0.1},
        {"reward": True},
        {"reward": "1"},
        {"reward": 10**400},
        {"reward": None},
        {"success": True},
        {"reward": 0.5, "success": True},
        {"reward": 1.0, "success": False},
        {"reward": 1.0, "success": 1},
        {"reward": 1.0, "certainly": True},
    ],
    ids=str,
)
def test_a_report_that_cannot_be_ends_the_session(report):
    session, _ = hs.session(ScriptedEngine("x"))
    with hs.client(session) as client:
        client.chat.completions.create(model=session.model, messages=HELLO)
        with pytest.raises(openai.BadRequestError) as refused:
            client.post("/reward", body=report, cast_to=object)
    assert refused.value.code == "report_refused"
    assert isinstance(session.ended_by, HarnessReportError)
    assert reported(session) is None


def test_a_report_is_given_once_and_ends_the_asking():
    session, _ = hs.session(ScriptedEngine("x"))
    with hs.client(session) as client:
        client.chat.completions.create(model=session.model, messages=HELLO)
        client.post("/reward", body={"reward": 0.25}, cast_to=object)
        with pytest.raises(openai.PermissionDeniedError):
            client.chat.completions.create(model=session.model, messages=HELLO)
    session.finish(b"all done\n")
    assert session.trajectory(0).reward == 0.25
    twice, _ = hs.session(ScriptedEngine("x"))
    with hs.client(twice) as client:
        client.chat.completions.create(model=twice.model, messages=HELLO)
        client.post("/reward", body={"reward": 1.0}, cast_to=object)
        with pytest.raises(openai.BadRequestError):
            client.post("/reward", body={"reward": 1.0}, cast_to=object)
    assert twice.trajectory(0) is None


def test_nothing_is_solved_without_an_answer():
    session, _ = hs.session(ScriptedEngine("x"))
    with hs.client(session) as client, pytest.raises(openai.BadRequestError):
        client.post("/reward", body={"reward": 1.0}, cast_to=object)
    assert session.trajectory(0) is None


def test_the_harness_may_say_success_itself():
    table = hs.spec(success={"info": "success"}, reward_range=(0.0, 10.0))
    for said in (True, False):
        session, _ = hs.session(ScriptedEngine("x"), table)
        with hs.client(session) as client:
            client.chat.completions.create(model=session.model, messages=HELLO)
        session.finish(json.dumps({"reward": 3, "success": said}).encode())
        played = session.trajectory(0)
        assert (played.success, played.reward) == (said, 3.0)
    silent, _ = hs.session(ScriptedEngine("x"), table)
    with hs.client(silent) as client:
        client.chat.completions.create(model=silent.model, messages=HELLO)
    assert reported(silent) is None
