"""``textworld:``, text adventures that the package textworld makes: the task's number is the seed.

Games are made in a process beside this one (``textworld_maker.py``) and kept in a directory
(``_Games``); they are played in this one. Invariants:

1. A game is made whole or not at all: it is written elsewhere and moved in. Its name says the seed,
   the options and the package's version.
2. The directory is this user's alone and holds at most ``max_games`` games.
3. A command is at most 100 letters, digits, blanks, apostrophes and hyphens, begins with a verb of
   the game or one of ``_MOVES``, and has no word of ``_NEVER``. The interpreter would write files
   at ``save`` and ``script``, and shows what is hidden at others. Anything else costs a step.
4. Won is what the package says of the game's own quest, and the reward is 1 then, else 0.

Covered: one quest a game, admissible commands, offline. Not covered: a limit on the time of a
command; the interpreter is C code in this process, and what reaches it is what invariant 3 allows.
"""

from __future__ import annotations

import atexit
import contextlib
import hashlib
import json
import os
import re
import shutil
import tempfile
import warnings
from collections.abc import Sequence
from functools import cache
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Final

from evolution.envs.foreign.child import Role, children_of
from evolution.envs.foreign.foreign import Breaker, ForeignEnvironment, Turn
from evolution.envs.foreign.spec import TextWorldSpec
from evolution.errors import EnvironmentFailureError, EnvironmentSetupError, ForeignReplyError

__all__ = ["MAKER", "TextWorldEnvironment"]

MAKER: Final = Role(module="evolution.envs.foreign.textworld_maker", file_bytes=64 << 20)

_COMMAND = re.compile(r"[a-z0-9' -]{1,100}")
_MOVES: Final = frozenset(
    {
        *("n", "s", "e", "w", "north", "south", "east", "west", "l", "x", "i", "z"),
        *("examine", "inventory", "look", "wait"),
    }
)
"""What the interpreter understands beside the game's verbs."""
_NEVER: Final = frozenset(
    {
        *("again", "noscript", "oops", "quit", "recording", "replay", "restart", "restore"),
        *("save", "script", "then", "transcript", "undo", "unscript", "verify"),
    }
)
_NO_COMMAND: Final = "That is no command here."
_STATUS = re.compile(r"\n>\s.*\Z", re.DOTALL)
"""The interpreter's prompt, behind which it paints a line with room and score."""
_BLANK = re.compile(r"\n\s*\n")


class TextWorldEnvironment(ForeignEnvironment[TextWorldSpec]):
    """See the module."""

    def __init__(self, spec: TextWorldSpec, breaker: Breaker) -> None:
        super().__init__(spec, breaker)
        self._game: Any = None
        self._state: Any = None

    def admissible(self) -> Sequence[str]:
        """Every command that is possible now."""
        return tuple(str(command) for command in self._state.admissible_commands)

    def _begin(self, index: int) -> Turn:
        if find_spec("textworld") is None:
            raise EnvironmentSetupError(
                f"{self.name} needs the package textworld: pip install 'chorale[textworld]'"
            )
        self._end()
        file = _games(self._spec.games).file(index, self._spec)
        self._state = _run(self._start, file)
        return Turn(observation=self._seen(f"{self._state.objective}\n\n{self._state.description}"))

    def _act(self, action: str | int) -> Turn:
        command = " ".join(str(action).lower().split())
        words = command.split(" ")
        verbs = _MOVES.union(self._state.verbs)
        if (
            _COMMAND.fullmatch(command) is None
            or words[0] not in verbs
            or not _NEVER.isdisjoint(words)
        ):
            return Turn(observation=self._seen(_NO_COMMAND), ours=True)
        self._state, _, over = _run(self._game.step, command)
        won = bool(self._state.won)
        return Turn(
            observation=self._seen(self._state.feedback),
            reward=float(won),
            terminated=bool(over),
            info={"won": won},
        )

    def _end(self) -> None:
        game, self._game = self._game, None
        if game is not None:
            _run(game.close)

    def _start(self, file: Path) -> Any:
        import textworld

        # At every game it says that the game is not one of those it knows by name.
        warnings.filterwarnings("ignore", module=r"jericho\.")
        shown = textworld.EnvInfos(
            admissible_commands=True,
            description=True,
            feedback=True,
            objective=True,
            verbs=True,
            won=True,
        )
        self._game = textworld.start(str(file), shown)
        return self._game.reset()

    def _seen(self, text: Any) -> str:
        if not isinstance(text, str):
            raise ForeignReplyError("the game says no text")
        plain = _BLANK.sub("\n\n", _STATUS.sub("", text)).strip()
        if self._spec.admissible and self._game is not None:
            plain += f"\n\nCommands: {'; '.join(self.admissible())}."
        return plain


class _Games:
    """A directory of games."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    def file(self, seed: int, spec: TextWorldSpec) -> Path:
        """The story file of a game, which is made where it is not there.

        Raises:
            EnvironmentSetupError: The directory cannot be used.
            ForeignEnvironmentError: The game could not be made.
        """
        size = {
            "rooms": spec.rooms,
            "objects": spec.objects,
            "quest_length": spec.quest_length,
        }
        kind = json.dumps([version("textworld"), size], sort_keys=True)
        name = f"{hashlib.sha256(kind.encode()).hexdigest()[:16]}-{seed}"
        story = self._directory / f"{name}.z8"
        try:
            # Two that make the same game at once make the same one.
            if not (story.is_file() and story.with_suffix(".json").is_file()):
                self._make({**size, "seed": seed}, story, spec.timeout_s)
                self._bound(spec.max_games)
            # The newest is the last that was played.
            os.utime(story)
        except OSError as error:
            raise EnvironmentSetupError(
                f"{spec.name}: games cannot be kept in {self._directory}: {error}"
            ) from error
        return story

    def _make(self, question: dict[str, Any], story: Path, timeout_s: float) -> None:
        with tempfile.TemporaryDirectory(prefix=".making-", dir=self._directory) as made:
            children_of(MAKER).ask({**question, "directory": made}, timeout_s=timeout_s)
            # The story comes last: a game is there once its story is.
            for ending in (".json", ".z8"):
                (Path(made) / f"game{ending}").replace(story.with_suffix(ending))

    def _bound(self, most: int) -> None:
        def played(story: Path) -> float:
            with contextlib.suppress(OSError):
                return story.stat().st_mtime
            return 0.0

        stories = sorted(self._directory.glob("*.z8"), key=played)
        for story in stories[: max(0, len(stories) - most)]:
            for ending in (".z8", ".json"):
                story.with_suffix(ending).unlink(missing_ok=True)


@cache
def _games(directory: str | None) -> _Games:
    """The games of a directory, or of one that ends with this process."""
    if directory is None:
        own = tempfile.mkdtemp(prefix="chorale-textworld-")
        atexit.register(shutil.rmtree, own, ignore_errors=True)
        return _Games(Path(own))
    path = Path(directory)
    try:
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = path.stat()
    except OSError as error:
        raise EnvironmentSetupError(f"games: {path} cannot be made: {error}") from error
    if found.st_uid != os.getuid() or found.st_mode & 0o022:
        raise EnvironmentSetupError(
            f"games: {path} belongs to another user, or others may write there; the interpreter "
            "would run what they put in: chmod 700"
        )
    return _Games(path)


def _run(call: Any, *args: Any) -> Any:
    """Call the package."""
    try:
        return call(*args)
    except EnvironmentFailureError:
        raise
    except Exception as error:
        raise ForeignReplyError(f"textworld raised {type(error).__name__}") from error
