"""Check the tags of a run: names and values by which callers find it."""

from __future__ import annotations

from perdure.errors import UsageError
from perdure.kernel.ids import check_text, flaw_of

# Limits, because every listed row carries its tags.
MAX_TAGS, MAX_TAG_NAME = 64, 200


def checked_tags(tags: dict[str, str] | None) -> dict[str, str] | None:
    """The tags as they are stored, None for none; or UsageError."""
    if tags is None:
        return None
    if not isinstance(tags, dict):
        raise UsageError(f"tags={tags!r:.80} must be a dict of names and values, such as tags={{'team': 'billing'}}")
    if not all(isinstance(k, str) and isinstance(v, str) for k, v in tags.items()):
        raise UsageError(f"tags={tags!r:.200}: names and values of tags are strings")
    if len(tags) > MAX_TAGS:
        raise UsageError(f"there are {len(tags):,} tags, and {MAX_TAGS} is the limit; put the rest into the input")
    for name, value in tags.items():
        flaw = flaw_of(name, MAX_TAG_NAME)
        if flaw is not None:
            raise UsageError(f"the name of the tag {name[:60]!r} {flaw}; choose a short name, such as 'team'")
        if check_text(value, f"the value of the tag {name!r}").isprintable() or "\0" not in value:
            continue
        raise UsageError(f"the value of the tag {name!r} holds a NUL, which not every store can keep: {value[:60]!r}")
    return dict(tags) or None
