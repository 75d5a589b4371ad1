"""The plain form of typed configs: nested dicts of JSON types, keyed by field names, and their digests.

YAML files, `sts show`, run folders, Ray workers and Tune's search space hold it; `reading` makes configs of it.
"""

import dataclasses
import hashlib
import json
from collections.abc import Iterable, Mapping
from typing import Any

from sts_core.fields import first_name, flattened, is_digested
from sts_pipelines.config.sections import kind_of, members_of, settable, types_of


def to_dict(config: Any, *, to_digest: bool = False) -> dict[str, Any]:
    """The plain form of a config; `to_digest` gives what its outcome depends on, under first names."""
    plain: dict[str, Any] = {}
    hints = types_of(type(config))
    for field in settable(type(config)):
        value, tagged = getattr(config, field.name), len(members_of(hints[field.name])) > 1
        if field.metadata.get("flatten"):
            plain.update(to_dict(value, to_digest=to_digest))
        elif "sections" in field.metadata:
            plain.update({name: to_dict(section, to_digest=to_digest) for name, section in value.items()})
        elif not to_digest:
            plain[field.name] = _to_plain(value, tagged=tagged)
        elif is_digested(field, value):
            plain[first_name(field)] = _to_plain(value, tagged=tagged, to_digest=True)
    return plain


def outcome_relevant(config: Any) -> dict[str, Any]:
    """The plain form of all that the outcome of a config depends on, to be digested."""
    return to_dict(config, to_digest=True)


def digest(plain: Mapping[str, Any], *, ignore: Iterable[str] = ()) -> str:
    """Eight hex digits of plain values, without the dotted names in `ignore`: equal ones have equal digests."""
    kept = {path: value for path, value in flattened(plain).items() if path not in set(ignore)}
    if "method.kind" in kept:  # run folders are named after its spelling without underscores
        kept["method.kind"] = str(kept["method.kind"]).replace("_", "")
    canonical = json.dumps(kept, sort_keys=True, allow_nan=True)
    return hashlib.sha256(canonical.encode()).hexdigest()[:8]


def _to_plain(value: Any, *, tagged: bool = False, to_digest: bool = False) -> Any:
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        kind = {"kind": kind_of(type(value))} if tagged else {}
        return kind | to_dict(value, to_digest=to_digest)
    if isinstance(value, Mapping):
        return {str(key): _to_plain(item, to_digest=to_digest) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_to_plain(item, to_digest=to_digest) for item in value]
    return value
