"""A second small searchable environment: find a book by words and take it.

It has two text fields, one option dimension (the binding), prices, and nothing of the shop's code.
"""

from evolution.envs.environment import Environment
from evolution.envs.tasks import label_index
from evolution.envs.variants.content import Content, Document, Wish
from evolution.envs.variants.stages import Encoding, Search, Stages

SUBJECTS = ("sea", "moon", "bread", "snow", "glass", "horses")
KINDS = ("atlas", "novel", "guide", "poems")


def books():
    documents = [
        Document(
            key=f"B{number:02d}",
            text={
                "title": (subject, kind),
                "description": (kind, "of", subject, *(["again"] * (number % 4))),
            },
            options={"colour": ("red",) if number % 2 else ("blue", "red")},
            price=1.0 + number % 5,
        )
        for number, (subject, kind) in enumerate((s, k) for s in SUBJECTS for k in KINDS)
    ]
    wishes = [
        Wish(target=one.key, words=one.text["title"], options={"colour": "red"}, budget=one.price)
        for one in documents[::3]
    ]
    return Content(documents=tuple(documents), wishes=tuple(wishes))


BOOKS = books()


class Library(Environment):
    """``look for <words>``, then ``take <number>``."""

    name = "library"
    family = "library"
    max_steps = 4
    labels = ("all",)
    instruction = "find the book and take it"

    def __init__(self):
        self.use(Stages(content=BOOKS, encoding=Encoding(fields=("title", "description"))))

    @property
    def stages(self):
        return self._search.stages

    def use(self, stages):
        self._search = Search(stages)

    def reset(self, task_id):
        label_index(task_id, labels=1)
        self._wish = BOOKS.wishes[task_id % len(BOOKS.wishes)]
        self._search.begin(task_id)
        self._shown, self._steps = (), 0
        return "wanted: " + " ".join(self._wish.words), {"taken": ""}

    def step(self, action):
        self._steps += 1
        taken = ""
        verb, _, rest = action.partition(" ")
        documents = self.stages.content.documents
        if verb == "look":
            self._shown = self._search.find(rest.removeprefix("for ").split())[:3]
        elif verb == "take" and rest.isdigit() and 1 <= int(rest) <= len(self._shown):
            taken = documents[self._shown[int(rest) - 1]].key
        text = " / ".join(" ".join(documents[n].text["title"]) for n in self._shown) or "nothing"
        info = {"taken": taken, "valid": verb in ("look", "take")}
        right = taken == self._wish.target
        return text, float(right), bool(taken), not taken and self._steps >= 4, info

    def success(self, info):
        return info["taken"] == self._wish.target
