"""Classes of the form that TRL's documentation gives for ``environment_factory``."""

from __future__ import annotations

from typing import Any, Literal

WORDS = ("crane", "slate", "mound")


class Wordle:
    """Owns its reward; says at a mistake what is wrong, by an exception."""

    def __init__(self, tries: int = 3) -> None:
        self.tries = tries
        self.made = 0

    def reset(self, *, seed: int, hint: str = "", **kwargs: Any) -> str | None:
        self._word = WORDS[seed % 3]
        self._left = self.tries
        self.over = False
        self.score = 0.0
        return f"A word with {len(self._word)} letters.{hint}"

    def guess(self, word: str) -> str:
        """Guess the word.

        Args:
            word: A word of five letters.

        Returns:
            How near it is.
        """
        if self.over:
            raise ValueError("Game over.")
        self._left -= 1
        self.over = word == self._word or not self._left
        self.score = float(word == self._word)
        if self.over:
            return "That is it." if self.score else f"It was {self._word}."
        return f"{sum(a == b for a, b in zip(word, self._word, strict=False))} letters are right."

    def letters(
        self, place: int = 1, form: Literal["low", "capital"] = "low", also: list[int] | None = None
    ) -> dict[str, str]:
        """Look at letters of the word.

        Args:
            place: Which letter, from 1 on.
            form: How it is written.
            also: More places.

        Returns:
            The letters by place.
        """
        found = {str(at): self._word[at - 1] for at in [place, *(also or [])]}
        return {at: letter.upper() for at, letter in found.items()} if form == "capital" else found

    def get_reward(self) -> float:
        return self.score

    def _secret(self) -> str:
        return self._word

    @property
    def costly(self) -> str:
        raise RuntimeError("TRL evaluates no property, and nobody else may")


class Spoilt(Wordle):
    """What a class may do wrong."""

    def __init__(self, spoilt: str) -> None:
        super().__init__()
        self._spoilt = spoilt
        self.score: Any = 0.0

    def reset(self, *, seed: int, hint: str = "", **kwargs: Any) -> Any:
        seen = super().reset(seed=seed)
        if self._spoilt == "reset":
            raise RuntimeError("asked to")
        if self._spoilt == "image":
            return [{"type": "image", "image": b""}]
        if self._spoilt == "blocks":
            return [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
        return None if self._spoilt == "silent" else seen

    def get_reward(self) -> Any:
        wrong = {"nan": float("nan"), "none": None, "text": "1"}
        if self._spoilt == "raise":
            raise RuntimeError("asked to")
        return wrong.get(self._spoilt, 1.0)


class NoReset:
    def guess(self, word: str) -> str:
        """Guess."""


class NoTools:
    def reset(self, **kwargs: Any) -> None:
        pass

    def get_reward(self) -> float:
        return 1.0


class Undescribed(NoTools):
    def guess(self, word: str) -> str:
        return word


class Untyped(NoTools):
    def guess(self, word) -> str:
        """Guess."""


class Anyhow(NoTools):
    def guess(self, **words: str) -> str:
        """Guess."""


class Later(NoTools):
    async def guess(self, word: str) -> str:
        """Guess."""


class Odd(NoTools):
    def guess(self, word: NoReset) -> str:
        """Guess."""


class Rewardless:
    def reset(self, seed: int) -> None:
        self.reward = 0.25 * (seed % 3)

    def wait(self) -> None:
        """Do nothing."""


class Rows:
    """Is given rows of a dataset, and no number."""

    def reset(self, prompt: str, answer: str) -> str:
        return prompt

    def wait(self) -> None:
        """Do nothing."""

    def get_reward(self) -> float:
        return 1.0
