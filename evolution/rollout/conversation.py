"""How an episode becomes tokens, for every model and everyone who needs it.

The base-model builder, the rollout engine and the trainer must agree on every token, so the layout
is decided here and nowhere else. The pieces are cut out of the tokenizer's own chat template once:
a template is rendered around marker texts and split at them. Invariants:

1. Appending a turn only ever appends tokens. Nothing is rendered again: an episode is
   ``opening(instruction, first_observation, examples)``, what the model generated,
   ``next_turn(observation)``, what the model generated, and so on.
2. Agent tokens are what the model generated including the end token; everything else is context
   and carries no loss, the answers of example turns among it.
3. Text from an environment cannot open or close a turn: strings that the tokenizer would read as a
   special token are removed until none is left, and the length is bounded.

Covered: any Hugging Face tokenizer with a chat template, with or without a system role. Not
covered: templates that rewrite earlier turns when a later one is added; they are only asked for the
shape of one turn.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from evolution.envs.environment import Example
from evolution.errors import ChatTemplateError, ConversationError

__all__ = ["ChatFormat", "RenderedEpisode", "messages"]

MAX_OBSERVATION_CHARS = 4_000
MAX_ACTION_CHARS = 200
MAX_EXAMPLES = 16
_MAX_NESTED = 64
"""So deep a long text may have chat markers in one another; a bounded one ends by itself."""

_SYSTEM, _FIRST, _AGENT, _NEXT = (f"chorale{n}marker" for n in ("system", "first", "agent", "next"))
_MARKER = re.compile(r"<\|[^<>|]{0,40}\|>|</?s>|\[/?INST\]")
# A fixed date keeps the tokens of all silos equal; templates that know neither name ignore them.
_TEMPLATE_OPTIONS: Mapping[str, Any] = {"date_string": "26 Jul 2024", "enable_thinking": False}


@dataclass(frozen=True, kw_only=True, slots=True)
class RenderedEpisode:
    """The tokens of a whole episode."""

    token_ids: tuple[int, ...]
    """Everything, in order."""
    agent_mask: tuple[bool, ...]
    """True where the agent wrote the token."""


def messages(
    instruction: str,
    observations: Sequence[str],
    actions: Sequence[str],
    *,
    examples: Sequence[Example] = (),
) -> list[dict[str, str]]:
    """The episode as chat messages with the roles system, user and assistant.

    There is one observation per turn, the first from the reset, and one action per answered
    observation. Examples come before the first.
    """
    chat = [{"role": "system", "content": instruction}]
    for observation, action in examples:
        chat.append({"role": "user", "content": observation})
        chat.append({"role": "assistant", "content": action})
    for index, observation in enumerate(observations):
        chat.append({"role": "user", "content": observation})
        if index < len(actions):
            chat.append({"role": "assistant", "content": actions[index]})
    return chat


@dataclass(frozen=True, kw_only=True, slots=True)
class _Pieces:
    """The texts around the contents of a conversation."""

    opening: tuple[str, str, str]
    """Before the instruction, between it and the first observation, after that observation."""
    turn: tuple[str, str]
    """Between the agent's end token and an observation, and after that observation."""
    end_marker: str
    """The special token that ends the agent's turn."""


class ChatFormat:
    """Turns observations into tokens and tokens into actions, for one tokenizer."""

    def __init__(self, tokenizer: Any, pieces: _Pieces) -> None:
        self._tokenizer = tokenizer
        self._backend = _backend_of(tokenizer)
        self._pieces = pieces
        self._specials = _special_strings(tokenizer)
        self.turn_end_id: int = tokenizer.convert_tokens_to_ids(pieces.end_marker)
        ends = {self.turn_end_id}
        if tokenizer.eos_token_id is not None:
            ends.add(int(tokenizer.eos_token_id))
        self.end_ids: frozenset[int] = frozenset(ends)
        self._special_ids = frozenset(tokenizer.convert_tokens_to_ids(list(self._specials)))
        self._unknown_id = _unknown_id(tokenizer, others=self.end_ids)

    @classmethod
    def from_tokenizer(cls, tokenizer: Any) -> ChatFormat:
        """Cut the pieces out of a Hugging Face tokenizer's chat template.

        Raises:
            ChatTemplateError: The template is missing or has no shape we can append to.
        """
        if not getattr(tokenizer, "chat_template", None):
            raise ChatTemplateError("the tokenizer has no chat template")
        pieces = _cut(tokenizer, system_role=True) or _cut(tokenizer, system_role=False)
        if pieces is None:
            raise ChatTemplateError("the chat template does not keep what it is given, in order")
        return cls(tokenizer, pieces)

    def opening(
        self,
        instruction: str,
        first_observation: str,
        examples: Sequence[Example] = (),
        *,
        scaffold: str = "",
    ) -> list[int]:
        """Token ids before the agent's first word; they end with the header of its turn.

        Examples are turns before the first. A scaffold stands above the first observation, in the
        same turn.

        Raises:
            ConversationError: There are more than ``MAX_EXAMPLES``.
        """
        if len(examples) > MAX_EXAMPLES:
            raise ConversationError(f"{len(examples)} example turns; at most {MAX_EXAMPLES} fit")
        before, between, after = self._pieces.opening
        first = self.clean(first_observation)
        if scaffold:
            first = f"{self.clean(scaffold)}\n\n{first}"
        observations = [*(self.clean(observation) for observation, _ in examples), first]
        token_ids = self._encode(
            f"{before}{self.clean(instruction)}{between}{observations[0]}{after}"
        )
        for (_, action), observation in zip(examples, observations[1:], strict=True):
            token_ids += self.answer(action) + self._turn(observation)
        return token_ids

    def next_turn(self, observation: str) -> list[int]:
        """Token ids between the agent's end token and its next word.

        They end with the header of the agent's turn. If the agent was cut off before its end token,
        the caller feeds ``turn_end_id`` first, as context.
        """
        return self._turn(self.clean(observation))

    def _turn(self, cleaned: str) -> list[int]:
        before, after = self._pieces.turn
        return self._encode(f"{before}{cleaned}{after}")

    def answer(self, action: str) -> list[int]:
        """Token ids of an agent's turn that was written as text, for demonstrations.

        They end with the end token.
        """
        return [*self._encode(self.clean(action)), self.turn_end_id]

    def parse_action(self, token_ids: Sequence[int]) -> str:
        """The action in what the agent generated, with or without the end token.

        One line of bounded length without chat markers: the text after the last ``Action:`` if
        there is one. May be empty; an environment answers that like any unknown action.
        """
        text = str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True))
        _, _, tail = self.clean(text).rpartition("Action:")
        lines = tail.strip().splitlines()
        return " ".join(lines[0].split())[:MAX_ACTION_CHARS] if lines else ""

    def render(
        self,
        instruction: str,
        observations: Sequence[str],
        actions: Sequence[str],
        *,
        examples: Sequence[Example] = (),
    ) -> RenderedEpisode:
        """The tokens of an episode that is given as text, with the mask of those the agent wrote.

        Observations beyond the last action are ignored, because nothing answers them.

        Raises:
            ConversationError: There is no action, or an action answers no observation.
        """
        if not actions or len(observations) < len(actions):
            raise ConversationError("an episode needs one observation before each action")
        token_ids: list[int] = []
        mask: list[bool] = []
        for index, action in enumerate(actions):
            context = (
                self.next_turn(observations[index])
                if index
                else self.opening(instruction, observations[0], examples)
            )
            answer = self.answer(action)
            token_ids += context + answer
            mask += [False] * len(context) + [True] * len(answer)
        return RenderedEpisode(token_ids=tuple(token_ids), agent_mask=tuple(mask))

    def clean(self, text: str) -> str:
        """Text from outside with everything removed that could open or close a turn.

        It is stripped, and of bounded length.
        """
        return self.unmarked(text[:MAX_OBSERVATION_CHARS])

    def unmarked(self, text: str) -> str:
        """Stripped text of any length with everything removed that could open or close a turn.

        Raises:
            ConversationError: Markers stand in one another deeper than any text has them.
        """
        # A short text costs nothing, however deep; each pass over a long one takes its time.
        passes = MAX_OBSERVATION_CHARS if len(text) <= MAX_OBSERVATION_CHARS else _MAX_NESTED
        for _ in range(passes):
            cleaned = _MARKER.sub(" ", text)
            for special in self._specials:
                cleaned = cleaned.replace(special, " ")
            if cleaned == text:
                return text.strip()
            text = cleaned
        raise ConversationError("chat markers stand in one another without end")

    def rendered(
        self, chat: Sequence[Mapping[str, Any]], *, tools: Sequence[Mapping[str, Any]] = ()
    ) -> str:
        """A whole conversation by the tokenizer's own template, up to the agent's next word.

        Nothing is cleaned here; tools are of the form that chat completions have.

        Raises:
            ChatTemplateError: The template does not take it.
        """
        # Safety: jinja2 is what transformers renders templates with; it is there if a template is.
        from jinja2.exceptions import TemplateError

        options = {**_TEMPLATE_OPTIONS, **({"tools": list(tools)} if tools else {})}
        try:
            text = self._tokenizer.apply_chat_template(
                list(chat), tokenize=False, add_generation_prompt=True, **options
            )
        except (TemplateError, TypeError, ValueError) as error:
            raise ChatTemplateError("the chat template does not take this conversation") from error
        return str(text)

    def encode(self, text: str) -> list[int]:
        """Token ids of rendered text; in it special tokens are themselves."""
        return self._encode(text)

    def text_of(self, token_ids: Sequence[int]) -> str:
        """What the agent generated, as text without special tokens and chat markers."""
        return self.unmarked(str(self._tokenizer.decode(list(token_ids), skip_special_tokens=True)))

    @property
    def end_marker(self) -> str:
        """The text of ``turn_end_id``."""
        return self._pieces.end_marker

    def words_read(self, token_ids: Sequence[int]) -> tuple[int, int]:
        """Of tokens that a model read, how many are text, and how many of these an unknown word.

        A vocabulary that can write everything, byte by byte, has no unknown words.
        """
        words = unknown = 0
        for token in token_ids:
            stands_for_one = token == self._unknown_id
            unknown += stands_for_one
            words += stands_for_one or token not in self._special_ids
        return words, unknown

    def unknown_words(self, text: str) -> tuple[str, ...]:
        """The words of a text, between blanks, that the vocabulary does not have; each once."""
        if self._unknown_id is None:
            return ()
        words = dict.fromkeys(self.clean(text).split())
        return tuple(word for word in words if self._unknown_id in self._encode(word))

    def _encode(self, text: str) -> list[int]:
        if self._backend is not None:
            (found,) = self._backend.encode_batch_fast([text], add_special_tokens=False)
            return list(found.ids)
        ids = self._tokenizer(text, add_special_tokens=False, return_attention_mask=False)
        return [int(token) for token in ids["input_ids"]]


def _backend_of(tokenizer: Any) -> Any:
    """What encodes behind a tokenizer, if anything does; the way through the tokenizer's own call
    takes more than twice as long.
    """  # noqa: D205  # one sentence
    backend = getattr(tokenizer, "backend_tokenizer", None)
    if backend is not None:
        # A file may ask for either; the tokenizer's own call undoes them as well.
        backend.no_truncation()
        backend.no_padding()
    return backend


def _special_strings(tokenizer: Any) -> tuple[str, ...]:
    added = {token.content for token in tokenizer.added_tokens_decoder.values() if token.special}
    names = added | set(tokenizer.all_special_tokens)
    return tuple(sorted((n for n in names if n.strip()), key=lambda name: (-len(name), name)))


def _unknown_id(tokenizer: Any, *, others: frozenset[int]) -> int | None:
    """What is written for every word that the vocabulary does not have.

    A token with another task as well says nothing: vocabularies that need none name one so.
    """
    unknown = tokenizer.unk_token_id
    taken = {*others, tokenizer.bos_token_id, tokenizer.pad_token_id}
    return None if unknown is None or unknown in taken else int(unknown)


def _cut(tokenizer: Any, *, system_role: bool) -> _Pieces | None:
    """Render the template around marker texts and split it at them.

    Without a system role, which some templates do not know, the instruction leads the first
    observation. None if the markers do not come back once each and in order.
    """
    # Safety: jinja2 is what transformers renders templates with; it is there if a template is.
    from jinja2.exceptions import TemplateError

    if system_role:
        first = [{"role": "system", "content": _SYSTEM}, {"role": "user", "content": _FIRST}]
    else:
        first = [{"role": "user", "content": f"{_SYSTEM}\n\n{_FIRST}"}]
    later = [{"role": "assistant", "content": _AGENT}, {"role": "user", "content": _NEXT}]
    try:
        short, long = (
            str(
                tokenizer.apply_chat_template(
                    chat, tokenize=False, add_generation_prompt=True, **_TEMPLATE_OPTIONS
                )
            )
            for chat in (first, first + later)
        )
    except TemplateError:
        return None
    opening = re.split(f"{_SYSTEM}|{_FIRST}", short)
    turn = re.split(f"{_SYSTEM}|{_FIRST}|{_AGENT}|{_NEXT}", long)
    if (
        len(opening) != 3
        or re.findall(f"{_SYSTEM}|{_FIRST}", short) != [_SYSTEM, _FIRST]
        or re.findall(f"{_SYSTEM}|{_FIRST}|{_AGENT}|{_NEXT}", long)
        != [_SYSTEM, _FIRST, _AGENT, _NEXT]
    ):
        return None
    after_agent = turn[3].lstrip()
    for marker in _special_strings(tokenizer):
        if after_agent.startswith(marker):
            return _Pieces(
                opening=(opening[0], opening[1], opening[2]),
                turn=(after_agent[len(marker) :], turn[4]),
                end_marker=marker,
            )
    return None
