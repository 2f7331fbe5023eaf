"""A Dockerfile as data: stages with their instructions, continuation lines joined."""

import json
import re
from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class Stage:
    """From one FROM to the next."""

    base: str
    name: str
    instructions: list[tuple[str, str]] = field(default_factory=list)

    def of(self, keyword):
        """The arguments of every instruction of a kind, in order."""
        return [text for word, text in self.instructions if word == keyword]


@dataclass
class Dockerfile:
    """All of one file."""

    arguments: dict[str, str]
    """Defaults of every ARG, wherever it stands."""
    stages: list[Stage]

    @property
    def final(self):
        return self.stages[-1]

    def environment(self):
        """ENV of the final stage, PATH aside."""
        (text,) = self.final.of("ENV")
        return dict(re.findall(r"(\w+)=(\S+)", text))


def read(path: Path) -> Dockerfile:
    """Parse what our files use of the format."""
    lines = [line for line in path.read_text().splitlines() if not line.lstrip().startswith("#")]
    text = re.sub(r"\\\n\s*", "", "\n".join(lines))
    found = Dockerfile(arguments={}, stages=[])
    for line in filter(str.strip, text.splitlines()):
        word, _, rest = line.partition(" ")
        if word == "ARG":
            name, _, default = rest.partition("=")
            found.arguments.setdefault(name, default)
        if word == "FROM":
            base, _, name = rest.partition(" AS ")
            found.stages.append(Stage(base=base, name=name))
        elif found.stages:
            found.stages[-1].instructions.append((word, rest.strip()))
    return found


def exec_form(text):
    """The words of an instruction in exec form; None for shell form."""
    return json.loads(text) if text.startswith("[") else None
