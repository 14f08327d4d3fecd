"""The check whether an actor belongs to a run; the server calls it for each hello."""

from typing import Any

_WORDS = {
    "protocol": "protocol version",
    "inference": "place of inference (--inference)",
    "level_name": "environment (--level_name)",
    "options": "environment's options",
    "emulator": "emulator",
    "algorithm": "algorithm (--algorithm)",
    "reward_clipping": "--reward_clipping",
    "deterministic_run": "--deterministic_run",
    "network": "network (--agent_name and the flags of networks)",
    "steps": "observations and actions",
    "unroll": "unroll layout (--unroll_length, observations, actions)",
    "normalised": "normalisation (--normalize_observations, --subtract_mean_image, "
    "--normalize_rewards, --value_normalization)",
    "rewards": "size of rewards (--reward_scaling, --max_abs_reward)",
    "box": "policy of Box actions (--box_policy, --box_deviation)",
    "acting": "layout of parameters",
}
_NETWORK_KEYS = {
    "network",
    "unroll",
    "normalised",
    "rewards",
    "box",
    "acting",
}  # an actor that only steps has no network


NO_TOKEN = (
    "this host's token differs from the learner's: copy its token file to this host "
    "(scp LEARNER:.config/impala_mm/token ~/.config/impala_mm/token), or give its path with "
    "--token_file"
)


def other_run(asked: dict[str, Any], start: str) -> str:
    """Return a sentence if the learner belongs to another run than the caller; empty if not.

    `start` is the learner's id of its start (`starter.start_id`). A caller that was started by
    hand has none, and may join any run.
    """
    theirs = asked.get("start", "")
    if theirs in {"", start}:
        return ""
    mine = f"run {start}" if start else "a learner that was started by hand"
    return f"this learner belongs to another run ({mine}) than this actor (run {theirs})"


def refusal(asked: dict[str, Any], identity: dict[str, Any]) -> str:
    """Return a sentence that says why an actor that sent `asked` is refused; empty if accepted."""
    for key, words in _WORDS.items():
        if asked.get("inference") == "learner" and key in _NETWORK_KEYS:
            continue
        if asked.get(key) != identity.get(key):
            mine, theirs = identity.get(key), asked.get(key)
            return f"this actor's {words} is {theirs}, the learner's is {mine}"
    if asked.get("inference") == "learner":
        return ""
    return _differing_own_flag(*(dict(each.get("own_flags", ())) for each in (asked, identity)))


def _differing_own_flag(theirs: dict[str, str], mine: dict[str, str]) -> str:
    """Return a sentence about a flag of the algorithm that differs; empty if all are the same."""
    for flag in mine | theirs:
        if (here := theirs.get(flag, "missing")) != (there := mine.get(flag, "missing")):
            return (
                f"this actor's {flag}, a flag of the algorithm, is {here}, the learner's is {there}"
            )
    return ""
