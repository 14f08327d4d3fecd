"""Who belongs to a run: what an actor says of itself in its hello, against what the learner is."""

from typing import Any

_WORDS = {
    "protocol": "protocol version",
    "inference": "place of inference (--inference)",
    "level_name": "environment (--level_name)",
    "options": "environment's options",
    "emulator": "emulator",
    "algorithm": "algorithm (--algorithm)",
    "reward_clipping": "--reward_clipping",
    "network": "network (--agent_name)",
    "steps": "observations and number of actions",
    "unroll": "unroll layout (--unroll_length, observations, actions)",
    "acting": "layout of parameters",
}
_OF_ITS_OWN_NETWORK = {"network", "unroll", "acting"}  # which an actor that only steps has none of


NO_TOKEN = (
    "the learner's token is another: copy its token file to this host "
    "(scp LEARNER:.config/impala_mm/token ~/.config/impala_mm/token), or name it with "
    "--token_file"
)


def refusal(asked: dict[str, Any], identity: dict[str, Any]) -> str:
    """Why an actor is refused, in a sentence; empty where it belongs."""
    for key, words in _WORDS.items():
        if asked.get("inference") == "learner" and key in _OF_ITS_OWN_NETWORK:
            continue
        if asked.get(key) != identity.get(key):
            mine, theirs = identity.get(key), asked.get(key)
            return f"this actor's {words} is {theirs}, the learner's is {mine}"
    return ""
