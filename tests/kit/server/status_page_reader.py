"""Reading the status page as a browser would: well formed, and inert whatever it shows."""

import re
from html.parser import HTMLParser

VOID = {"meta", "link", "br"}
HOSTILE = "\"'><script>alert(1)</script><img src=x onerror=alert(1)>&lt;\u202e\x1b[2J\n</style>"
TAGS = {
    "html", "head", "meta", "title", "link", "style", "body", "a", "header", "main", "footer",
    "section", "div", "span", "p", "h1", "h2", "h3", "ul", "ol", "li", "dl", "dt", "dd", "pre",
    "code", "strong", "br", "time", "table", "caption", "thead", "tbody", "tr", "th", "td",
    "figure", "figcaption", "svg", "desc", "path", "rect", "g",
}  # fmt: skip


class Parsed(HTMLParser):
    """The elements and the text of a page; an element that is not closed is an error."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.open, self.tags, self.texts, self.ids = [], [], [], []
        self.feed(text)
        self.close()
        assert self.open == [], self.open

    def handle_starttag(self, tag, attrs):
        self.tags.append((tag, dict(attrs)))
        self.ids += [value for name, value in attrs if name == "id"]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] != "style":
            self.texts.append(data)

    @property
    def text(self):
        return " ".join(" ".join(self.texts).split())


def seen(coordinator, path="/"):
    return Parsed(coordinator.html(path))


def require_inert(text):
    parsed = Parsed(text)
    assert {name for name, _ in parsed.tags} <= TAGS
    for name, attributes in parsed.tags:
        assert not [key for key in attributes if key.startswith("on") or key == "style"], name
        target = attributes.get("href")
        if target is not None:
            assert re.match(r"/$|/\?hold$|#|/runs/[^/?#]+(\?hold)?$|data:image/svg", target), target
    assert not re.search(r"[\u202a-\u202e\u2066-\u2069\x00-\x08\x0b-\x1f]", text.replace("\n", ""))
    return parsed
