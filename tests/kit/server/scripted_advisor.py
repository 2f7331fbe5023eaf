"""An advisor's endpoint without a network, for worlds of simulated time."""

import json

from federation.advice.conversation import Failure
from server.advisor.endpoint import AdvisorError


class Scripted:
    """Answers from a list, its last entry again and again."""

    model = "scripted"
    takes_tools = True

    def __init__(self, *answers):
        self.answers = list(answers)
        self.asked = []

    async def ask(self, content, *, timeout_s, max_bytes):
        self.asked.append(content)
        answer = self.answers.pop(0) if len(self.answers) > 1 else self.answers[0]
        if isinstance(answer, Failure):
            raise AdvisorError(answer)
        text = answer if isinstance(answer, str) else json.dumps(answer)
        message = {"role": "assistant", "content": text}
        return json.dumps(
            {"choices": [{"message": message}], "usage": {"total_tokens": 9}}
        ).encode()


def says(**given):
    return {"reason": "because", **given}
