"""What stands between tags in a message of a model."""

from __future__ import annotations

import re


def fields(text: str, tag: str) -> list[str]:
    """What stands in each field, in their order; spaces and line ends stay.

    A field is an opening tag and the closing tag after it, with no other opening tag in between: who speaks about a tag before
    using it has opened nothing by that. Upper and lower case are alike.

    Args:
        text: The message.
        tag: Its name, without brackets.
    """
    name = re.escape(tag)
    return re.findall(rf"<{name}>((?:(?!<{name}>).)*?)</{name}>", text, re.DOTALL | re.IGNORECASE)
